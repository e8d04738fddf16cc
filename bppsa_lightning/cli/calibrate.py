HELP = ABOUT = EXAMPLES = ""
from bppsa_lightning.cli.answer import load_package
def add_arguments(parser): pass
def run(asked): load_package()
