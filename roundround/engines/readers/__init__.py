"""Readers: engines that answer the cases of the suite, one class in each file, with a yaml in conf/engine."""
