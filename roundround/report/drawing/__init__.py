"""How every figure and table is drawn: panels, tables, style, numbers."""
