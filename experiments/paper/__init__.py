"""The figures and tables of the paper, measured here, and the page that shows them."""
