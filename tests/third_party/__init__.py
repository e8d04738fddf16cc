"""Models of public packages, unchanged, with strategy="bppsa" and with their own default."""
