"""What SECURITY.md promises of the source, and of what is printed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import each

import attention_np

PACKAGE = Path(attention_np.__file__).parent
SOURCES = [*sorted(PACKAGE.rglob("*.py")), PACKAGE.parent / "_attention_np_pytest.py"]

EXECUTING = {"eval", "exec", "compile", "execfile", "__import__", "breakpoint"}
UNPICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
REACHING_OUT = {"socket", "urllib", "http", "ftplib", "smtplib", "requests", "httpx", "ctypes", "cffi", "pty"}
SHELLS = {"os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "subprocess.getoutput"}
UNSAFE_YAML = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
UNSAFE_LOADERS = {"Loader", "UnsafeLoader", "FullLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}
# What could be one of these; to write out every attribute of the source would take most of the time.
ATTRIBUTES = UNSAFE_YAML | UNSAFE_LOADERS | {name.partition(".")[2] for name in SHELLS} | {"eval", "exec", "fromfile"}
STARTS_PROCESSES = {"cli/verification.py"}  # which shares the work among the cores


def dangers(source, name="module.py"):
    """What a module does that the promises rule out."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += imported([alias.name for alias in node.names], name)
        elif isinstance(node, ast.ImportFrom):
            found += imported([node.module or ""], name)
        elif isinstance(node, ast.Name) and node.id in EXECUTING:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            found += attribute(ast.unparse(node))
        elif isinstance(node, ast.keyword):
            found += keyword(node)
    return found


def imported(modules, name):
    ruled_out = UNPICKLING | REACHING_OUT | (set() if name in STARTS_PROCESSES else {"subprocess", "multiprocessing"})
    return [module for module in modules if module.partition(".")[0] in ruled_out]


def attribute(words):
    owner, _, last = words.rpartition(".")
    unsafe = owner == "yaml" and last in UNSAFE_YAML | UNSAFE_LOADERS
    loads = (owner, last) in {("torch", "load"), ("builtins", "eval"), ("builtins", "exec"), ("np", "fromfile")}
    return [words] if unsafe or loads or words in SHELLS else []


def keyword(node):
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    if node.arg == "allow_pickle" and value is not False:
        return ["allow_pickle"]
    return ["shell"] if node.arg == "shell" and value is not False else []


@each("path", SOURCES)
def test_a_module_unpickles_and_executes_nothing(path):
    name = path.relative_to(PACKAGE).as_posix() if PACKAGE in path.parents else path.name
    assert not dangers(path.read_text(encoding="utf-8"), name)


@each(
    "line",
    [
        "eval('1')",
        "run = exec",
        "compile('1', 'f', 'eval')",
        "__import__('os')",
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as harmless",
        "import urllib.request",
        "import subprocess",
        "os.system('true')",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=allowed)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.scan(text, Loader=yaml.UnsafeLoader)",
        "torch.load(file)",
        "run(words, shell=True)",
    ],
)
def test_what_is_looked_for_is_found(line):
    assert dangers(line)


@each("line", ["module.eval()", "re.compile('a')", "yaml.safe_load(text)", "np.load(file, allow_pickle=False)"])
def test_what_is_harmless_is_not_taken_for_a_danger(line):
    assert not dangers(line)


@pytest.mark.again
def test_importing_warns_of_nothing_and_brings_numpy_and_the_standard_library_alone():
    program = (
        "import sys, numpy; before = set(sys.modules); import attention_np.gradcheck, attention_np.known_answers; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    words = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert set(done.stdout.split()) <= {"attention_np", "numpy"}
    assert not done.stderr


WATCHED = """
import sys
from pathlib import Path
from attention_np.derivation import read_page, verify

def use():
    print(verify([read_page(Path(sys.argv[1]))]))

use()  # what is imported or compiled at first use is ours
seen = []
never = {"exec", "compile", "import", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen"}
sys.addaudithook(lambda event, _: seen.append(event) if event in never or event.startswith("socket") else None)
use()
assert not seen, seen
"""


def test_to_read_a_page_executes_and_imports_nothing(tmp_path):
    page = tmp_path / "t.md"
    page.write_text("---\nsizes: n\ntensors: {x: [n]}\n---\n$$ \\sum_i x_i = \\mathbf{1}^\\top x \\tag{t.1} $$\n")
    words = [sys.executable, "-c", WATCHED, str(page)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
