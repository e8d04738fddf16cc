"""The report of a training: one HTML page that needs nothing else, from the data of one file."""

from bppsa_lightning.report.files import FORMAT, read, render
from bppsa_lightning.report.page import page
