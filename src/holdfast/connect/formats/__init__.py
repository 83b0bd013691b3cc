"""File formats: how rows are cut out of files and put into them."""
