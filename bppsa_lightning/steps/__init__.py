"""Any recurrence, given as the function of one step: `bl.scan`."""

from bppsa_lightning.steps.known import Known, scans_of
from bppsa_lightning.steps.learned import Scans
from bppsa_lightning.steps.scan import scan
