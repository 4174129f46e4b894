"""`python -m hvdlab.check SCRIPT` is `hvdlab check SCRIPT`."""

import argparse
import sys

from hvdlab.check.command import EPILOG, add_arguments, main

parser = argparse.ArgumentParser(
    prog="hvdlab check", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
)
add_arguments(parser)
sys.exit(main(parser.parse_args()))
