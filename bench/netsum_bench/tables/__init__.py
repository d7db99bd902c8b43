"""Tables and plots that are more than rows and columns (report.Table): functions of the records."""
