"""The conformance kit has tests that any plugin of a kind has to pass; they use only its contract, with edge cases.

    pip install 'ale-core[testing]'
    pytest --pyargs ale_testing --ale-plugin sandbox:docker [--ale-config FILE]

1. `plugin.py` is a pytest plugin (entry-point group `pytest11`) with the two options and with the fixture `subject`,
   which is the plugin under test. FILE is YAML with the plugin's settings, as after `use:` in a run file.
2. `test_<kind>.py` and `test_<kind>_*.py` are the suite of a kind, and `test_driver.py` is for every kind; pytest
   collects no other suite. A package's own tests can use a suite with `from ale_testing.test_sandbox import *`.
3. `async_tests.py` runs each test in a separate event loop with a deadline; a test that hangs fails with a sentence.
4. The other modules help with a package's own tests. `fake_sandboxes.py`, `fake_engines.py` (with a model session),
   `fake_packages.py`, `recording_channel.py` and `echo_service.py` replace what surrounds a plugin;
   `sample_batches.py`, `loss_samples.py`, `sample_conversation.py`, `sample_trajectory.py` and `tiny_model.py` have
   sample data; `command_line.py` runs `ale` in the test's process, and `sandbox_providers.py` finds out which
   providers work on this machine; `forked_ale.py` and `forked_command.py` fork `ale` where it needs a process of its
   own, and `ray_nodes.py` starts nodes of Ray whose workers are forked; `index_venvs.py` makes venvs with packages of
   an index, once for all runs; `temporary_files.py` has a folder for temporary files in which none may be left.
"""
