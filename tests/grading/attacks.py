"""Programs that try to get a pass without an answer. Each says what it tries; none may pass, whatever else it gets.

STDIN_ATTACKS    early exits, forged results, frames and objects, the driver and its files, streams, patched builtins
HARMFUL_ATTACKS  the machine and the runs beside: bombs, signals, network, processes, other people's files; for servers with
                 isolation only
CALL_ATTACKS     values that are not what they seem
COUNTING         programs that number their tests, which one alone cannot: state that a process keeps from test to test
COMPANY_ATTACKS  others on a process that several tests share
"""

# One program, one string: long lines are kept.
# ruff: noqa: E501

FORGED = '{"tests": [{"ended": "exit", "code": 0, "cpu_s": 0.0, "wall_s": 0.0, "rss_kb": 1, "output_bytes": 0, "answer": "", "stderr": ""}]}'

STDIN_ATTACKS: dict[str, str] = {
    "leaves before the tests": "import os; os._exit(0)",
    "sys.exit on an import line": "import sys; sys.exit(0)",
    "raises SystemExit with True": "raise SystemExit(False)",
    "output that claims to be equal": (
        "class Any(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\nprint(Any('x'))"
    ),
    "a forged result file, here and above": (
        f"for place in ('results.json', '../results.json'):\n    open(place, 'w').write({FORGED!r})"
    ),
    "a forged result file written by a survivor": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        f"        open('../results.json', 'w').write({FORGED!r})\n        time.sleep(0.001)"
    ),
    "a link in place of the result file": "import os\nos.symlink('/etc/passwd', '../results.json')",
    "a folder in place of the result file": "import os\nos.makedirs('../results.json/x')\nopen('../results.json/y', 'w')",
    "a pipe in place of the result file": "import os\nos.mkfifo('../results.json')",
    "a hard link to the result file": "import os\nopen('x', 'w')\nos.link('x', '../results.json')",
    "moves the working directory away": "import os\nhere = os.path.dirname(os.getcwd())\nos.rename(here, here + '-moved')",
    "takes the rights off the working directory": "import os\nos.chmod('..', 0)",
    "an immovable folder": "import os\nos.makedirs('a/b')\nos.chmod('a', 0)",
    "kills the driver": "import os; os.kill(os.getppid(), 9)",
    "kills its own group": "import os; os.killpg(0, 9)",
    "asks the driver to end": "import os, signal\nfor s in (15, 2, 1, 3, 10, 12): os.kill(os.getppid(), s)",
    "floods the driver with signals": "import os\nfor _ in range(10000): os.kill(os.getppid(), 17)",
    "writes to every descriptor": (
        f"import os\nfor fd in range(3, 50):\n    try: os.write(fd, {FORGED!r}.encode())\n    except OSError: pass"
    ),
    "writes to the driver's descriptors": (
        "import os\nfor fd in range(50):\n    try:\n"
        f"        open(f'/proc/{{os.getppid()}}/fd/{{fd}}', 'w').write({FORGED!r})\n    except OSError: pass"
    ),
    "writes to the driver's memory": (
        "import os\ntry:\n    with open(f'/proc/{os.getppid()}/mem', 'r+b') as f:\n        f.seek(0x400000); f.write(b'x')\n"
        "except OSError: pass"
    ),
    "reads the driver's memory for answers": (
        "import os\ntry: print(open(f'/proc/{os.getppid()}/mem', 'rb').read(10))\nexcept OSError: pass"
    ),
    "walks the frames for answers": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    print({**frame.f_globals, **frame.f_locals})\n"
        "    frame = frame.f_back"
    ),
    "searches all objects for answers": (
        "import gc\nfor x in gc.get_objects():\n    if isinstance(x, dict) and 'inputs' in x: print(x)"
    ),
    "reads every file about": (
        "import os\nfor folder in ('.', '..', '/tmp', '/proc/self', os.path.dirname(os.__file__) + '/..'):\n"
        "    for name in os.listdir(folder)[:50]:\n        try: print(open(os.path.join(folder, name)).read(1000))\n"
        "        except (OSError, UnicodeDecodeError): pass"
    ),
    "reads the environment": "import os\nprint(os.environ)",
    "patches the builtins": (
        "import builtins, json, os, sys\nbuiltins.open = builtins.compile = builtins.exec = lambda *a, **k: None\n"
        "json.dumps = json.loads = lambda *a, **k: True\nsys.modules['__main__'].main = lambda: None"
    ),
    "patches the way out": "import os, atexit, threading\nos._exit = atexit._run_exitfuncs = threading._shutdown = lambda *a: 1 / 0",
    "prints after the end": ("import atexit, os\natexit.register(lambda: (os.write(1, b'0'), os._exit(0)))"),
    "a thread that writes on": (
        "import threading, os\ndef on():\n    while True: os.write(1, b'5\\n')\n"
        "threading.Thread(target=on, daemon=True).start()"
    ),
    "a daemon that outlives it": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(1000)\n    os._exit(0)"
    ),
    "closes its output": "import os\nos.close(1); os.close(2); os.close(0)",
    "closes its streams": "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "no streams at all": "import sys\nsys.stdout = sys.stderr = sys.stdin = sys.__stdout__ = None",
    "an exception that cannot be shown": (
        "class E(Exception):\n    def __str__(self): raise E\n    __repr__ = __str__\nraise E"
    ),
    "unprintable output": "import os\nos.write(1, bytes(range(256)) * 100)",
    "claims a forged time-out": f"print({FORGED!r})",
    "digits of another script": "print('\uff15')",
    "every answer at once": "for i in range(100): print(i)",
    "a frozen process": "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nos.kill(os.getpid(), 9)",
    "no limits": (
        "import resource\nfor r in range(16):\n    try: resource.setrlimit(r, (-1, -1))\n"
        "    except (ValueError, OSError): pass"
    ),
    "a profiler on everything": "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: 1 / 0)\ndef f(): pass\nf()",
    "crashes the interpreter": "import ctypes\nctypes.string_at(0)",
    "aborts": "import os\nos.abort()",
    "a source that is hard to compile": "x = " + "(" * 5000 + ")" * 5000,
    "a source of many nested blocks": "\n".join(" " * i + "if 1:" for i in range(120)) + "\n" + " " * 121 + "pass",
    "changes its input": "import os\nos.ftruncate(0, 0)\nos.pwrite(0, b'0 0', 0)",
    "a sparse output": "import os\nos.ftruncate(1, 1 << 40)",
}

HARMFUL_ATTACKS: dict[str, str] = {
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "a fork bomb of sessions": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass"
    ),
    "a thread bomb": (
        "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    except RuntimeError: break"
    ),
    "a memory bomb": "held = []\nwhile True: held.append(bytearray(32 << 20))",
    "a memory bomb in children": (
        "import os, time\nfor _ in range(30):\n    if os.fork() == 0:\n        held = b'x' * (200 << 20)\n        time.sleep(1000)\n"
        "os.wait()"
    ),
    "a memory bomb in anonymous files": (
        "import os\nwhile True:\n    fd = os.memfd_create('x')\n    for _ in range(10): os.write(fd, bytes(1 << 20))"
    ),
    "fills the disk": "for n in range(100):\n    with open(f'f{n}', 'wb') as file: file.write(bytes(10 << 20))",
    "fills the disk above": "for n in range(100):\n    with open(f'../f{n}', 'wb') as file: file.write(bytes(10 << 20))",
    "uses up the files": "import os\nfor n in range(1000000): os.mkdir(str(n))",
    "a very deep folder": "import os\nfor n in range(5000):\n    os.mkdir('d')\n    os.chdir('d')",
    "a folder that nobody may enter, above": "import os\nos.makedirs('../a/b/c')\nos.chmod('../a/b', 0)\nos.chmod('../a', 0)",
    "uses up the descriptors": "import os\nwhile True: os.pipe()",
    "kills everything": "import os\nos.kill(-1, 9)",
    "kills everything by name": (
        "import os\nfor pid in range(1, 100000):\n    if pid != os.getpid():\n        try: os.kill(pid, 9)\n        except OSError: pass"
    ),
    "stops the driver": "import os\nos.kill(os.getppid(), 19)",
    "stops everything": "import os\nos.kill(-1, 19)",
    "stops itself": "import os\nos.kill(os.getpid(), 19)",
    "sleeping daemons": (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(10000)\n"
        "        os._exit(0)"
    ),
    "daemons that fork on": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        if os.fork(): os._exit(0)"
    ),
    "a child with its output, asleep": "import os, time\nif os.fork() == 0: time.sleep(10000)\nprint(0)",
    "ignores every signal": (
        "import _signal\nfor n in range(1, 65):\n    try: _signal.signal(n, _signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass"
    ),
    "asks the network": "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)",
    "asks a name server": "import socket\nsocket.gethostbyname('example.com')",
    "asks every port of loopback": (
        "import socket\nfor port in range(1, 65536):\n    with socket.socket() as s:\n        if s.connect_ex(('127.0.0.1', port)) == 0: s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(100))"
    ),
    "serves on loopback": "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.accept())",
    "sends a datagram": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "listens to the kernel": "import socket\nprint(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).recv(10))",
    "asks an abstract socket": (
        "import socket\nfor name in open('/proc/net/unix').read().split():\n    if name[0] == '@': socket.socket(socket.AF_UNIX).connect(chr(0) + name[1:])"
    ),
    "reads other runs' files": (
        "import os\nfor folder in ('/tmp', '/var/tmp', '/dev/shm', '..', '../..'):\n    for path, _, names in os.walk(folder):\n"
        "        for name in names:\n            try: print(open(os.path.join(path, name), errors='replace').read(1000))\n            except OSError: pass"
    ),
    "reads every process": (
        "import os\nfor pid in os.listdir('/proc'):\n    for name in ('environ', 'cmdline', 'maps', 'mem', 'fd/0', 'root/etc/shadow', 'cwd/results.json'):\n"
        "        try: print(open(f'/proc/{pid}/{name}', 'rb').read(1000))\n        except (OSError, ValueError): pass"
    ),
    "traces the driver": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nprint(libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(0x4206, os.getppid(), 0, 0))"
    ),
    "writes to the driver's pages": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nbuffer = ctypes.create_string_buffer(8)\n"
        "class V(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]\n"
        "here, there = V(ctypes.addressof(buffer), 8), V(id(os), 8)\n"
        "print(libc.process_vm_writev(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0))"
    ),
    "lowers the driver's limits": (
        "import os, resource\nfor kind in (0, 1, 5, 6, 7, 9):\n    try: resource.prlimit(os.getppid(), kind, (0, 0))\n    except OSError: pass"
    ),
    "takes the driver's processor": (
        "import os\ntry: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)\nexcept OSError: pass"
    ),
    "becomes root": "import os\nfor f in (os.setuid, os.setgid):\n    try: f(0)\n    except OSError: pass\nprint(open('/etc/shadow').read())",
    "mounts": "import ctypes\nprint(ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "a namespace of its own": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000 | 0x20000))",
    "breaks out by chroot": "import os\nos.mkdir('x')\nos.chroot('x')\nos.chdir('../../../..')\nos.chroot('.')\nprint(os.listdir('/root'))",
    "changes Python's library": "import os\nopen(os.__file__, 'a').write('print(0)')",
    "changes Python's library, linked": "import os\nos.link(os.__file__, 'x')\nopen('x', 'a').write('print(0)')",
    "a library in the driver's folder": (
        "import os\nfor name in ('json', 'base64', 'shutil', 'numpy', 'encodings'):\n    open(f'../{name}.py', 'w').write('import os; os._exit(0)')\n"
        "os.kill(os.getppid(), 9)"
    ),
    "keeps a segment of shared memory": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.shmget(0x5eed, 100 << 20, 0o1666), libc.semget(0x5eed, 100, 0o1666))"
    ),
    "the driver's folder as a link": (
        "import os\nhere = os.path.dirname(os.getcwd())\nos.symlink('/dev/zero', '../results.json.new')\nos.rename('../results.json.new', '../results.json')"
    ),
    "a device in place of the result file": "import os\nos.mknod('../results.json', 0o20666, os.makedev(1, 5))",
    "a huge sparse result file": "with open('../results.json', 'wb') as file: file.truncate(100 << 20)",
    "takes the next tests' folders": "import os\nfor n in range(1, 20): os.symlink('/etc', f'../test-{n}')",
    "leaves files for the next test": "import os\nfor n in range(1, 20):\n    os.mkdir(f'../test-{n}')\n    open(f'../test-{n}/x', 'w')",
    "floods the error output": "import os\nwhile True: os.write(2, b'x' * 65536)",
    "raises its priority": "import os\nos.nice(-20)\nwhile True: pass",
    "a name of bytes": "import os\nos.mkdir(b'../\\xff\\xfe\\n')\nopen(b'../\\xff\\xfe\\n/\\x01', 'w')",
    "a lock on everything": (
        "import fcntl, os\nfor name in os.listdir('..'):\n    try: fcntl.flock(os.open('../' + name, 0), 2)\n    except OSError: pass\nwhile True: pass"
    ),
}

CALL_ATTACKS: dict[str, str] = {
    "a value equal to all": "class E:\n    def __eq__(self, other): return True\ndef total(xs): return E()",
    "an int equal to all": (
        "class I(int):\n    def __eq__(self, other): return True\n    def __repr__(self): return '6'\n"
        "    __hash__ = int.__hash__\ndef total(xs): return I(5)"
    ),
    "a float that shows itself as the answer": (
        "class F(float):\n    def __repr__(self): return 'NaN'\ndef total(xs): return F(1)"
    ),
    "a list with a will of its own": "class L(list):\n    def __iter__(self): return iter(())\ndef total(xs): return L([1])",
    "NaN": "def total(xs): return float('nan')",
    "an encoder of its own": (
        "import json\njson.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *a: 'null'\ndef total(xs): return 1"
    ),
    "writes a value of its own": ("import os\nos.write(3, b'{\"value\": null}')\nos._exit(0)"),
    "writes half a value": "import os\ndef total(xs):\n    os.write(3, b'{\"value\": ')\n    os._exit(0)",
    "writes no JSON": "import os\ndef total(xs):\n    os.write(3, b'\\xff\\xfe{')\n    os._exit(0)",
    "writes a list": "import os\ndef total(xs):\n    os.write(3, b'[\"value\"]')\n    os._exit(0)",
    "a deep value": "def total(xs):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "a value that contains itself": "def total(xs):\n    x = []\n    x.append(x)\n    return x",
    "changes its arguments": "def total(xs):\n    xs.clear()\n    xs.append('x')\n    return xs",
    "patches sum": "import builtins\nbuiltins.sum = lambda xs: True\ndef total(xs): return sum(xs) + 1",
    "a property that exits": "import os\nclass Solution:\n    @property\n    def total(self): os._exit(0)",
    "leaves from a finaliser": "import os\nclass D:\n    def __del__(self): os._exit(0)\ndef total(xs):\n    D()\n    return sum(xs)",
}

# Each sets `n`, in the hope of how many tests there have been.
COUNTING: dict[str, str] = {
    "an attribute of builtins": "import builtins\nn = builtins.n = getattr(builtins, 'n', 0) + 1",
    "an attribute of __builtins__": "b = __builtins__ if type(__builtins__) is dict else vars(__builtins__)\nn = b['n'] = b.get('n', 0) + 1",
    "an attribute of sys": "import sys\ntry: n = sys.n + 1\nexcept AttributeError: n = 1\nsys.n = n",
    "an attribute of math": "import math\ntry: n = math.n + 1\nexcept AttributeError: n = 1\nmath.n = n",
    "an attribute of a function": "import json\ntry: n = json.dumps.n + 1\nexcept AttributeError: n = 1\njson.dumps.n = n",
    "an attribute of a class": "try: n = Counter.n + 1\nexcept AttributeError: n = 1\nCounter.n = n",
    "an attribute of a method": "try: n = Counter.update.n + 1\nexcept AttributeError: n = 1\nCounter.update.n = n",
    "a function replaced": "import heapq\nn = 1 + (heapq.merge.__name__ != 'merge')\ndef other(): pass\nheapq.merge = other",
    "a method replaced": "n = 1 + (Counter.update.__name__ != 'update')\ndef other(self, *a): pass\nCounter.update = other",
    "a class of the library": "import io\nclass Old(io.StringIO): pass\nn = 1 + (io.StringIO.__name__ == 'Old')\nio.StringIO = Old",
    "a module of its own": "import sys\nn = sys.modules.setdefault('mine', [0])\nn[0] += 1\nn = n[0]",
    "an attribute of a module that it imports": (
        "import fractions\ntry: n = fractions.n + 1\nexcept AttributeError: n = 1\nfractions.n = n"
    ),
    "an attribute of a class that it imports": (
        "from fractions import Fraction\ntry: n = Fraction.n + 1\nexcept AttributeError: n = 1\nFraction.n = n"
    ),
    "the decimal context": "import decimal\nn = decimal.getcontext().prec - 27\ndecimal.getcontext().prec += 1",
    "the default decimal context": (
        "import decimal\nn = decimal.DefaultContext.prec - 27\ndecimal.DefaultContext.prec += 1"
    ),
    "the annotations of a function": (
        "import heapq\nkept = heapq.merge.__annotations__\nn = kept['n'] = kept.get('n', 0) + 1"
    ),
    "an attribute by another name": (
        "import operator\nkept = operator.attrgetter('decoder.__dict__')(json)\nn = kept['n'] = kept.get('n', 0) + 1"
    ),
    "its error output": "import os\nn = os.fstat(2).st_size + 1\nos.write(2, b'x')",
    "its arguments": "import sys\nsys.argv += ['x']\nn = len(sys.argv) - 1",
    "a list of a module": "import string\ntry: string.seen += [1]\nexcept AttributeError: string.seen = [1]\nn = len(string.seen)",
    "sys.path": "import sys\nn = sys.path.count('x') + 1\nsys.path.append('x')",
    "sys.argv": "import sys\nn = len(sys.argv)\nsys.argv.append('x')",
    "import hooks": "import sys\nsys.meta_path.append(None)\nn = sys.meta_path.count(None)\nsys.meta_path",
    "the environment": "import os\nn = int(os.environ.get('N', 0)) + 1\nos.environ['N'] = str(n)",
    "the recursion limit": "import sys\nn = sys.getrecursionlimit() - 600000 + 1\nsys.setrecursionlimit(600000 + n)",
    "random numbers": "import random\ndrawn = random.random()\nrandom.seed(0)\nn = 1 + (drawn != random.random())\nrandom.random()",
    "random numbers, not seeded": "n = 1 + (randint(0, 10 ** 9) != 906691059)",
    "a file": "import os\nn = len(os.listdir())\nopen(f'{n}', 'w')",  # one is its own
    "a file, without os": "n = 1\ntry:\n    n += len(open('x').read())\nexcept OSError: pass\nopen('x', 'a').write('x')",
    "the working directory": "import os\nn = len(os.getcwd().split('/x'))\nos.mkdir('x')\nos.chdir('x')",
    "open descriptors": "import os\nfd = os.open('/dev/null', os.O_RDONLY)\nn = fd - 2",
    "open files": "f = open('/dev/null')\nn = f.fileno() - 2\nkept = [f]\nkept.append(kept)",
    "a thread": "import threading, time\nn = threading.active_count()\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "an exit handler": "import atexit\nn = atexit._ncallbacks() + 1\natexit.register(int)",
    "a signal handler": "import signal\nn = 1 + (signal.getsignal(10) is not signal.SIG_DFL)\nsignal.signal(10, lambda *a: None)",
    "blocked signals": "import signal\nn = 1 + len(signal.pthread_sigmask(signal.SIG_BLOCK, [10]))",
    "a limit": "import resource\nsoft, hard = resource.getrlimit(7)\nn = 1 + (soft == 99)\nresource.setrlimit(7, (99, hard))",
    "the file mode mask": "import os\nn = 1 + (os.umask(0o77) == 0o77)",
    "priority": "import os\nn = os.nice(1)",
    "collector callbacks": "import gc\nn = len(gc.callbacks) + 1\ngc.callbacks.append(lambda *a: None)",
    "the collector": "import gc\nn = 2 - gc.isenabled()\ngc.disable()",
    "a trace function": "import sys\nn = 1 + (sys.gettrace() is not None)\nsys.settrace(lambda *a: None)",
    "a profiler": "import sys\nn = 1 + (sys.getprofile() is not None)\nsys.setprofile(lambda *a: None)",
    "the digits of an integer": "import sys\nn = 1 + (sys.get_int_max_str_digits() == 1000)\nsys.set_int_max_str_digits(1000)",
    "a codec": "import codecs\ntry: n = len(codecs.lookup('counted').name)\nexcept LookupError: n = 1\ncodecs.register(lambda name: codecs.CodecInfo(None, None, name='xx'))",
    "warnings": "import warnings\nn = 1 + (('error', None, ImportWarning, None, 7) in warnings.filters)\nwarnings.simplefilter('error', ImportWarning, 7)",
    "a child": (
        "import os\nn = 1\ntry:\n    os.waitpid(-1, os.WNOHANG)\n    n = 2\nexcept ChildProcessError: pass\n"
        "if os.fork() == 0:\n    while True: os.sched_yield()"
    ),
    "a file in the folder above": (
        "n = 1\ntry: n += len(open('../x').read())\nexcept OSError: pass\nopen('../x', 'a').write('x')"
    ),
    "its own frames": "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\nn = frame.f_globals['n'] = frame.f_globals.get('n', 0) + 1",
    "the number of this test in the driver's memory": (
        "import gc\nn = max((x['number'] for x in gc.get_objects() if type(x) is dict and 'number' in x and type(x['number']) is int), default=0) + 1"
    ),
    "the name space of its module": "import __main__\nn = __main__.__dict__.setdefault('seen', 0) + 1\n__main__.seen = n",
    "print replaced": "import builtins\nn = 1 + (builtins.print.__name__ != 'print')\nold = print\ndef new(*a): old(*a)\nbuiltins.print = new",
    "input replaced in the builtins": "import builtins\nn = 1 + (builtins.input.__name__ != 'input')\ndef new(): return ''\nbuiltins.input = new",
    "the encoder of JSON": "import json\nn = 1 + (json.JSONEncoder.encode(json.JSONEncoder(), 1) == '2')\njson.JSONEncoder.encode = lambda *a: '2'",
    "an abstract class": "import numbers\nclass A: pass\nn = 1 + issubclass(str, numbers.Number)\nnumbers.Number.register(str)",
    "an abstract class of the prelude": (
        "from collections import abc\nn = 1 + issubclass(str, abc.Callable)\nabc.Callable.register(str)"
    ),
    "a cache of the library": (
        "import re, sys\nre.sub('(a)', r'\\1', 'a')\n"
        "cached = re._compile_repl if sys.version_info < (3, 12) else re._compile_template\n"
        "n = cached.cache_info().currsize\nre.sub('(a)', rf'{n}', 'a')"
    ),
    "an instance of the library": "try: n = sys.implementation.n + 1\nexcept AttributeError: n = 1\nsys.implementation.n = n",
    "finalisers": "import builtins\nclass D:\n    def __del__(self): builtins.n = 2\nn = getattr(builtins, 'n', 1)\nd = D()\nd.d = d",
}

# Each is put between `n = int(input())` and `print(n)`, which is right for all tests but the last.
COMPANY_ATTACKS: dict[str, str] = {
    "nothing": "",
    "leaves in the middle": "import os\nif n == 3: print(n, flush=True); os._exit(0)",
    "leaves with a status in the middle": "import sys\nif n == 3: print(n); sys.exit(3)",
    "crashes in the middle": "if n == 3: [][0]",
    "aborts in the middle": "import ctypes\nif n == 3: ctypes.string_at(0)",
    "kills itself in the middle": "import os\nif n == 3: os.kill(os.getpid(), 9)",
    "endless in the middle": "while n == 3: pass",
    "endless output in the middle": "while n == 3: print('x' * (1 << 20))",
    "memory in the middle": "if n == 3: x = bytearray(8 << 30)",
    "memory that adds up": "x = [bytearray(240 << 20)]\nx.append(x)",
    "deep recursion in the middle": "def f(k): return 0 if k == 0 else 1 + f(k - 1)\nif n == 3: f(100000)",
    "ends all tests after the first": (
        "import os\nprint(n, flush=True)\nfor fd in range(3, 80):\n    try: os.write(fd, b't')\n    except OSError: pass\n"
        "for fd in range(3, 80):\n    try: os.write(fd, b'.')\n    except OSError: pass\nos._exit(0)"
    ),
    "a mark of its own": "for fd in range(3, 80):\n    try: open(fd, 'wb', closefd=False).write(b'tttttt.')\n    except OSError: pass",
    "marks without os": "for fd in range(3, 20):\n    try: open(fd, 'wb', closefd=False).write(b't')\n    except OSError: pass",
    "closes what it was not given": "import os\nos.closerange(3, 200)",
    "closes all": "print(n, flush=True)\nimport os\nos.closerange(0, 200)\nos._exit(0)",
    "closes the next answers, without os": "for fd in range(3, 80):\n    try: open(fd).close()\n    except OSError: pass",
    "keeps its output open": "import os\nif n == 1: os.dup(1)",
    "writes to the next test's output": "for fd in range(5, 80):\n    try: open(fd, 'w', closefd=False).write('4\\n')\n    except OSError: pass",
    # Alone the first test has ended long before, on a slow machine too; in company the third or fourth is running.
    "an answer late": "import threading, time\nif n == 1: threading.Thread(target=lambda: (time.sleep(0.4), print(n)), daemon=True).start()\nelse: time.sleep(0.15)",
    "a thread that prints on": "import threading\ndef on():\n    while True: print(n)\nthreading.Thread(target=on, daemon=True).start()",
    "a child that prints later": "import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    while True: os.write(1, b'x')",
    "a finaliser that prints": "class D:\n    def __del__(self): print('late')\nd = D()\nd.d = d",
    "an exit handler that leaves": "import atexit, os\natexit.register(lambda: (print(n, flush=True), os._exit(0)))",
    "a file held for the next": "held = [open(1, 'w', closefd=False)]\nheld.append(held)\nheld[0].write(' ')",
    "sys.exit replaced": "import sys\nsys.exit = lambda *a: None",
    "exec and compile replaced": "import builtins\nbuiltins.exec = builtins.compile = lambda *a: None",
    "os patched": "import os\nos.dup2 = os.write = os.close = lambda *a: None",
    "streams that swallow": "import sys\nclass S:\n    def write(self, x): pass\n    def flush(self): pass\nprint(n, flush=True)\nsys.stdout = S()",
    "streams that fail": "import sys\nprint(n, flush=True)\nsys.stdout = sys.stdin = None",
    "time used up": "end = sum(range(3_000_000))",
    "the inputs of later tests": (
        "import gc\nfor x in gc.get_objects():\n    if type(x) is list and len(x) > 4 and all(type(y) is str for y in x): y = x"
    ),
    "an alarm": "import signal\nsignal.alarm(1)\nsignal.setitimer(signal.ITIMER_VIRTUAL, 0.01)",
    "a lower limit": "import resource\nif n == 2: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no descriptors": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "threads forbidden": "import threading\nthreading._shutdown = threading._main_thread = None",
    "modules gone": "import sys\nprint(n, flush=True)\nsys.modules.clear()",
    "a collection in the way": "import gc\ngc.callbacks.append(lambda *a: 1 / 0)",
    "another main module": "import sys\nsys.modules['__main__'] = None",
    "no recursion": "import sys\nprint(n, flush=True)\nsys.setrecursionlimit(60)",
}
