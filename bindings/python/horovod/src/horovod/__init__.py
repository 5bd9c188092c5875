"""Guozhuang in place of Horovod: `import horovod.torch` gives guozhuang.torch."""
import guozhuang

guozhuang.as_horovod()
