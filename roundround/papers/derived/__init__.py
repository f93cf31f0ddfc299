"""Statements that follow from the papers' and do not stand in them: derived here, checked like the others."""
