"""The tables of docs/results, made of the values of each seed that are stored beside the pages."""
