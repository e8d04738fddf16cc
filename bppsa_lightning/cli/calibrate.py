HELP = ABOUT = EXAMPLES = ""
from bppsa_lightning.cli.answer import load_package
def add_arguments(parser): parser.add_argument("x",nargs="?"); parser.add_argument("--input")
def run(asked): load_package()
