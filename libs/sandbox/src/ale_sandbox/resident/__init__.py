"""The program that runs inside every sandbox. It imports only the standard library and itself, because this folder is
copied there as it is."""
