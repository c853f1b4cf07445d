# SPDX-License-Identifier: GPL-2.0
"""Litmus tests in C: reads them, and runs their processes.

The definitions of the kernel's primitives are taken from linux-kernel.def. A process is run once for
each sequence of values that its reads may return; whether a write provides these is decided later. Each value
carries the reads that it was computed from, which gives the dependencies.
"""

import itertools
import re

import cat

TOKEN = re.compile(
    r"\s+|//[^\n]*|/\*.*?\*/|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>/\\|\\/|&~|&&|\|\||==|!=|<=|>=|[-+*&|^~!<>=(){}\[\],;:])",
    re.DOTALL,
)
TYPES = frozenset("int long short char unsigned signed spinlock_t atomic_t atomic64_t void volatile struct".split())
BINARY = (("||",), ("&&",), ("|",), ("^",), ("&", "&~"), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"))
OPERATE = {
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "&~": lambda a, b: a & ~b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
}
# Most values of one place that are tried.
VALUES = 12


class LitmusError(Exception):
    """A test that this program does not understand."""


class Unsupported(LitmusError):
    """A test that uses a primitive which is not supported."""


class Undecided(Exception):
    """A read for which no value was chosen."""

    def __init__(self, count):
        super().__init__()
        self.count = count


def strip_comments(text):
    """Removes comments of C, and outside of processes those of OCaml, which nest.

    In a process "(*" may begin a dereference.
    """
    out, at, depth, braces = [], 0, 0, 0
    for match in re.finditer(r"\(\*|\*\)|[{}]|//[^\n]*|/\*.*?\*/", text, flags=re.DOTALL):
        word = match.group()
        if not depth and word in "{}":
            braces += 1 if word == "{" else -1
        elif not depth and word.startswith("/"):
            out.append(text[at : match.start()] + " ")
            at = match.end()
        elif not braces and word == "(*":
            if not depth:
                out.append(text[at : match.start()])
            depth += 1
        elif depth and word == "*)":
            depth -= 1
            at = match.end()
    out.append(text[at:])
    return "".join(out)


def tokens(text):
    at, found = 0, []
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise LitmusError(f"unexpected text: {text[at:at + 40]!r}")
        at = match.end()
        if match.lastgroup:
            found.append(match.group())
    return found


class Macros:
    """The definitions of linux-kernel.def."""

    LINE = re.compile(r"^(\w+)\(([\w,]*)\)\s*(.*)$")
    BUILTIN = re.compile(r"(__\w+)\{([\w-]+)\}(\(?)")

    def __init__(self, directory):
        self.known = {}
        with open(f"{directory}/linux-kernel.def", encoding="utf-8") as file:
            for line in file:
                match = self.LINE.match(line.strip())
                if match:
                    name, params, body = match.groups()
                    self.known[name] = (params.split(",") if params else [], body.strip())

    @staticmethod
    def tag_first(match):
        """The tag of a primitive, as its first argument."""
        name, tag, more = match.groups()
        return f"{name}({tag.replace('-', '_')}" + ("," if more else ")")

    def expand(self, name, arguments):
        """The tokens that the call of `name` stands for; an argument is a list of tokens."""
        if name not in self.known:
            raise Unsupported(f"{name}() is not supported")
        params, body = self.known[name]
        if len(params) != len(arguments):
            raise LitmusError(f"{name}() has {len(params)} arguments")
        # The tag becomes the first argument.
        body = self.BUILTIN.sub(self.tag_first, body)
        given = dict(zip(params, arguments))
        out = []
        for token in tokens(body):
            if token not in given:
                out.append(token)
            elif len(given[token]) == 1:
                out += given[token]
            else:
                out += ["(", *given[token], ")"]
        return out


class Parser:
    """Parses tokens of C into tuples."""

    def __init__(self, words, macros):
        self.words = list(words)
        self.macros = macros
        self.at = 0

    def peek(self, ahead=0):
        at = self.at + ahead
        return self.words[at] if at < len(self.words) else ""

    def next(self):
        word = self.peek()
        self.at += 1
        return word

    def accept(self, *words):
        if self.peek() in words:
            return self.next()
        return None

    def expect(self, word):
        if not self.accept(word):
            raise LitmusError(f"expected {word!r}, found {self.peek()!r}")

    def block(self):
        """Statements up to the brace that closes them."""
        found = []
        while not self.accept("}"):
            if not self.peek():
                raise LitmusError("a block has no end")
            found.append(self.statement())
        return ("block", found)

    def statement(self):
        if self.accept("{"):
            return self.block()
        if self.accept(";"):
            return ("block", [])
        if self.accept("if"):
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            yes = self.statement()
            no = self.statement() if self.accept("else") else ("block", [])
            return ("if", condition, yes, no)
        if self.peek() in ("while", "for", "do", "goto", "switch", "return"):
            raise Unsupported(f"{self.peek()!r} is not supported")
        if self.peek() in TYPES:
            return self.declaration()
        left = self.expression()
        if self.accept("="):
            left = ("assign", left, self.expression())
        # A macro whose body is a block has ended itself.
        if left[0] != "block":
            self.expect(";")
        else:
            self.accept(";")
        return left

    def declaration(self):
        while self.accept("*", *TYPES):
            pass
        found = []
        while True:
            while self.accept("*"):
                pass
            name = self.next()
            value = self.expression() if self.accept("=") else ("number", 0)
            found.append(("declare", name, value))
            if not self.accept(","):
                break
        self.expect(";")
        return ("block", found)

    def expression(self, level=0):
        if level == len(BINARY):
            return self.unary()
        left = self.expression(level + 1)
        while self.peek() in BINARY[level]:
            operator = self.next()
            left = ("binary", operator, left, self.expression(level + 1))
        return left

    def unary(self):
        operator = self.accept("*", "!", "~", "-", "&")
        if operator:
            return ("unary", operator, self.unary())
        return self.operand()

    def arguments(self):
        """The arguments of a call, each a list of tokens."""
        found, depth = [[]], 0
        while depth or self.peek() != ")":
            word = self.next()
            if not word:
                raise LitmusError("a call has no end")
            depth += (word == "(") - (word == ")")
            if word == "," and not depth:
                found.append([])
            else:
                found[-1].append(word)
        self.expect(")")
        return found if found != [[]] else []

    def operand(self):
        if self.accept("("):
            # A cast says nothing here.
            if self.peek() in TYPES:
                while self.next() != ")":
                    pass
                return self.unary()
            value = self.expression()
            self.expect(")")
            return value
        word = self.next()
        if word.isdigit():
            return ("number", int(word))
        if not re.match(r"[A-Za-z_]", word):
            raise LitmusError(f"no expression begins with {word!r}")
        if not self.accept("("):
            return ("name", word)
        arguments = self.arguments()
        if word.startswith("__"):
            return ("primitive", word, [self.parsed(one) for one in arguments])
        body = Parser(self.macros.expand(word, arguments), self.macros)
        return body.statement() if body.peek() == "{" else body.expression()

    def parsed(self, words):
        """An argument of a primitive: an expression, or a tag or an operator."""
        if len(words) == 1 and words[0] in OPERATE:
            return words[0]
        return Parser(words, self.macros).expression()


class Test:
    """A litmus test."""

    def __init__(self, text, macros):
        match = re.match(r"\s*C\s+(\S+)", text)
        if not match:
            raise LitmusError("a test in C begins with \"C\" and its name")
        self.name = match.group(1)
        self.text = text
        result = re.search(r"Result:\s*(\w+)(?:\s+(DATARACE))?", text)
        self.result = " ".join(filter(None, result.groups())) if result else None
        words = tokens(strip_comments(text[match.end() :]))
        parser = Parser(words, macros)
        self.init, self.params, self.processes = {}, [], []
        self.quantifier, self.condition, self.filter = None, None, None
        parser.expect("{")
        while not parser.accept("}"):
            self.initial(parser)
        while re.fullmatch(r"P\d+", parser.peek()):
            self.process(parser)
        while parser.peek():
            self.clause(parser)
        if self.condition is None:
            raise LitmusError("there is no exists clause")

    def initial(self, parser):
        if parser.accept(";"):
            return
        parser.accept("[")
        while parser.accept("*", *TYPES):
            pass
        name = parser.next()
        parser.accept("]")
        value = 0
        if parser.accept("="):
            # As ATOMIC_INIT(1).
            if parser.peek(1) == "(":
                parser.next()
                parser.next()
            parser.accept("&")
            sign = -1 if parser.accept("-") else 1
            word = parser.next()
            value = sign * int(word) if word.isdigit() else word
            parser.accept(")")
        self.init[name] = value

    def process(self, parser):
        parser.next()
        parser.expect("(")
        params = [one[-1] for one in parser.arguments()]
        parser.expect("{")
        self.params.append(params)
        self.processes.append(parser.block())

    def clause(self, parser):
        word = parser.next()
        if word == "locations":
            while parser.next() != "]":
                pass
        elif word == "filter":
            self.filter = self.proposition(parser)
        elif word in ("exists", "forall", "~"):
            if word == "~":
                parser.expect("exists")
            self.quantifier = word
            self.condition = self.proposition(parser)
        else:
            raise LitmusError(f"unknown clause {word!r}")

    def proposition(self, parser):
        left = self.conjunction(parser)
        while parser.accept("\\/", "||"):
            left = ("or", left, self.conjunction(parser))
        return left

    def conjunction(self, parser):
        left = self.atom(parser)
        while parser.accept("/\\", "&&"):
            left = ("and", left, self.atom(parser))
        return left

    def atom(self, parser):
        if parser.accept("~", "!"):
            return ("not", self.atom(parser))
        if parser.accept("("):
            inner = self.proposition(parser)
            parser.expect(")")
            return inner
        parser.accept("[")
        word = parser.next()
        if word in ("true", "false"):
            return ("constant", word == "true")
        if parser.accept(":"):
            what = (int(word), parser.next())
        else:
            what = word
        parser.accept("]")
        differs = parser.next()
        if differs not in ("=", "==", "!="):
            raise LitmusError(f"unknown comparison {differs!r}")
        sign = -1 if parser.accept("-") else 1
        parser.accept("&")
        value = parser.next()
        value = sign * int(value) if value.isdigit() else value
        found = ("equal", what, value)
        return ("not", found) if differs == "!=" else found

    def is_plain(self):
        """Whether a process accesses memory without a primitive."""

        def plain(node):
            if not isinstance(node, (tuple, list)):
                return False
            if isinstance(node, tuple) and node[:2] == ("unary", "*"):
                return True
            if isinstance(node, tuple) and node and node[0] == "primitive":
                # The address of the access itself is none.
                is_address = lambda part: isinstance(part, tuple) and part[:2] == ("unary", "*")
                return any(plain(part[2] if is_address(part) else part) for part in node[2])
            return any(plain(part) for part in node)

        return any(plain(process) for process in self.processes)


def holds(condition, value_of):
    """Whether `condition` holds: True, False, or None as long as a value is not known."""
    kind = condition[0]
    if kind == "constant":
        return condition[1]
    if kind == "equal":
        found = value_of(condition[1])
        return None if found is None else found == condition[2]
    left = holds(condition[1], value_of)
    if kind == "not":
        return None if left is None else not left
    right = holds(condition[2], value_of)
    decides = kind == "or"
    if decides in (left, right):
        return decides
    return None if None in (left, right) else not decides


class Event:
    """One event of a process: kind (R, W, F, or as in lock.cat), place, value and tag."""

    def __init__(self, kind, loc=None, value=None, tag=None):
        self.kind, self.loc, self.value, self.tag = kind, loc, value, tag


class Run:
    """One run of a process, with the values that its reads return chosen by `choices`."""

    def __init__(self, params, body, values, choices):
        self.params = params
        self.values = values
        self.choices = choices
        self.chosen = 0
        self.events = []
        self.edges = {"addr": set(), "data": set(), "ctrl": set(), "rmw": set()}
        self.in_rmw = set()
        self.registers = {}
        # The reads that the current branch depends on.
        self.control = frozenset()
        self.execute(body)

    def choose(self, options):
        if self.chosen == len(self.choices):
            raise Undecided(len(options))
        self.chosen += 1
        return options[self.choices[self.chosen - 1]]

    def event(self, kind, loc=None, value=None, tag=None, addr=frozenset(), data=frozenset()):
        number = len(self.events)
        self.events.append(Event(kind, loc, value, tag))
        for name, reads in (("addr", addr), ("data", data), ("ctrl", self.control)):
            self.edges[name] |= {(read, number) for read in reads}
        return number

    def written(self):
        """The places that it writes, with the values."""
        return {(event.loc, event.value) for event in self.events if event.kind == "W"}

    def load(self, loc, tag, addr):
        options = sorted(self.values.get(loc, {0}), key=str)
        value = self.choose(options)
        number = self.event("R", loc, value, tag, addr)
        return value, number

    def store(self, loc, value, tag, addr, data):
        return self.event("W", loc, value, tag, addr, data)

    def execute(self, node):
        kind = node[0]
        if kind == "block":
            for one in node[1]:
                self.execute(one)
        elif kind == "if":
            value, reads = self.evaluate(node[1])
            before = self.control
            self.control = before | reads
            self.execute(node[2] if value else node[3])
            self.control = before
        elif kind == "declare":
            self.registers[node[1]] = self.evaluate(node[2])
        elif kind == "assign":
            self.assign(node[1], node[2])
        else:
            self.evaluate(node)

    def assign(self, left, right):
        if left[0] == "name":
            self.registers[left[1]] = self.evaluate(right)
            return
        loc, addr = self.place(left)
        value, data = self.evaluate(right)
        self.store(loc, value, None, addr, data)

    def place(self, node):
        """The place that `node` dereferences, and the reads that its address depends on."""
        if node[:2] == ("unary", "*"):
            return self.address(node[2])
        if node[0] == "name":
            return self.address(node)
        raise LitmusError("no place in memory")

    def address(self, node):
        loc, reads = self.evaluate(node)
        if not isinstance(loc, str):
            # A null pointer, or a value that no write provides.
            raise BadAddress()
        return loc, reads

    def evaluate(self, node):
        """The value of an expression, and the reads that it depends on."""
        kind = node[0]
        if kind == "number":
            return node[1], frozenset()
        if kind == "name":
            if node[1] in self.registers:
                return self.registers[node[1]]
            return node[1], frozenset()
        if kind == "unary":
            return self.unary(node[1], node[2])
        if kind == "binary":
            left, a = self.evaluate(node[2])
            if node[1] in ("&&", "||"):
                if bool(left) == (node[1] == "||"):
                    return int(bool(left)), a
                right, b = self.evaluate(node[3])
                return int(bool(right)), a | b
            right, b = self.evaluate(node[3])
            if node[1] in ("==", "!=") or (isinstance(left, int) and isinstance(right, int)):
                return OPERATE[node[1]](left, right), a | b
            raise BadAddress()
        if kind == "primitive":
            return self.primitive(node[1], node[2])
        if kind == "block":
            self.execute(node)
            return 0, frozenset()
        raise LitmusError(f"unknown expression {kind}")

    def unary(self, operator, node):
        if operator == "*":
            loc, addr = self.address(node)
            value, number = self.load(loc, None, addr)
            return value, frozenset([number])
        if operator == "&":
            return self.place(node)
        value, reads = self.evaluate(node)
        if operator == "!":
            return int(not value), reads
        if not isinstance(value, int):
            raise BadAddress()
        return (-value if operator == "-" else ~value), reads

    def primitive(self, name, arguments):
        if name in ("__lock", "__unlock", "__trylock", "__islocked"):
            return self.lock(name, *self.address(arguments[0]))
        # A name with "_" for "-".
        tag = arguments[0][1].replace("_", "-")
        if tag.startswith("srcu") or tag.endswith("srcu") or tag == "after-srcu-read-unlock":
            raise Unsupported("SRCU is not supported")
        arguments = arguments[1:]
        if name == "__fence":
            self.event("F", tag=tag)
            return 0, frozenset()
        if name == "__load":
            loc, addr = self.place(arguments[0])
            value, number = self.load(loc, tag, addr)
            return value, frozenset([number])
        if name == "__store":
            loc, addr = self.place(arguments[0])
            value, data = self.evaluate(arguments[1])
            self.store(loc, value, tag, addr, data)
            return 0, frozenset()
        return self.update(name, tag, arguments)

    def update(self, name, tag, arguments):
        """A read-modify-write operation."""
        loc, addr = self.address(arguments[0])
        if name == "__xchg":
            new, data = self.evaluate(arguments[1])
            old, read = self.load(loc, tag, addr)
            return self.updated(read, loc, new, tag, addr, data, old)
        if name == "__cmpxchg":
            wanted, _ = self.evaluate(arguments[1])
            new, data = self.evaluate(arguments[2])
            old, read = self.load(loc, tag, addr)
            self.in_rmw.add(read)
            if old != wanted:
                return old, frozenset([read])
            return self.updated(read, loc, new, tag, addr, data, old)
        if name == "__atomic_add_unless":
            by, data = self.evaluate(arguments[1])
            unless, _ = self.evaluate(arguments[2])
            old, read = self.load(loc, tag, addr)
            self.in_rmw.add(read)
            if old == unless:
                return 0, frozenset([read])
            return self.updated(read, loc, OPERATE["+"](old, by), tag, addr, data | {read}, 1)
        if name not in ("__atomic_op", "__atomic_op_return", "__atomic_fetch_op"):
            raise Unsupported(f"{name} is not supported")
        by, data = self.evaluate(arguments[2])
        old, read = self.load(loc, tag, addr)
        if not isinstance(old, int) or not isinstance(by, int):
            raise BadAddress()
        new = OPERATE[arguments[1]](old, by)
        result = new if name == "__atomic_op_return" else old
        found = self.updated(read, loc, new, tag, addr, data | {read}, result)
        return found if name != "__atomic_op" else (0, frozenset())

    def updated(self, read, loc, new, tag, addr, data, result):
        write = self.store(loc, new, tag, addr, data)
        self.in_rmw |= {read, write}
        self.edges["rmw"].add((read, write))
        return result, frozenset([read])

    def lock(self, name, loc, addr):
        if name == "__unlock":
            self.event("UL", loc, 0, addr=addr)
            return 0, frozenset()
        if name == "__islocked":
            kind = self.choose(["RL", "RU"])
            number = self.event(kind, loc, int(kind == "RL"), addr=addr)
            return int(kind == "RL"), frozenset([number])
        if name == "__trylock" and not self.choose([True, False]):
            number = self.event("LF", loc, 1, addr=addr)
            return 0, frozenset([number])
        number = self.event("LKR", loc, 0, addr=addr)
        self.event("LKW", loc, 1, addr=addr)
        return 1, frozenset([number])


class BadAddress(Exception):
    """A run that uses a number as an address or the reverse: no write provides that value."""


def runs(params, body, values):
    """All runs of a process whose reads return values of `values`."""
    found, pending = [], [()]
    while pending:
        choices = pending.pop()
        try:
            found.append(Run(params, body, values, choices))
        except Undecided as undecided:
            pending += [choices + (number,) for number in range(undecided.count)]
        except BadAddress:
            pass
    return found


def all_runs(test):
    """The runs of each process, with any values that the writes of the test may have written."""
    values = {name: {value} for name, value in test.init.items()}
    for params in test.params:
        for name in params:
            values.setdefault(name, {0})
    # A value that needs more steps than there are writes cannot be written.
    for _ in range(24):
        found = [runs(params, body, values) for params, body in zip(test.params, test.processes)]
        new = {name: set(known) for name, known in values.items()}
        for run in itertools.chain(*found):
            for event in run.events:
                if event.kind == "W":
                    new.setdefault(event.loc, {0}).add(event.value)
        new = {name: known if len(known) <= VALUES else values[name] for name, known in new.items()}
        if new == values:
            break
        values = new
    return found


class Candidates:
    """The candidate executions of a test, checked by the model."""

    LOCKS = ("LKR", "LKW", "UL", "LF", "RL", "RU")

    def __init__(self, test, model):
        self.test = test
        self.model = model
        self.found = all_runs(test)
        self.checked = 0

    def registers(self, combination):
        """The value of a register or place at the end, as far as it is known."""

        def value_of(what):
            if isinstance(what, str):
                return None
            process, register = what
            value = combination[process].registers.get(register)
            return 0 if value is None else value[0]

        return value_of

    def combinations(self, may_be):
        """Yields a run of each process, their reads provided, if the condition can be `may_be`."""
        initial = lambda loc: self.test.init.get(loc, 0)
        # What some process may write.
        any_write = frozenset(itertools.chain(*(run.written() for process in self.found for run in process)))

        def provided(run, written):
            return all(
                event.value == initial(event.loc) or (event.loc, event.value) in written
                for event in run.events
                if event.kind == "R"
            )

        # Only values that are written; again, as runs that are left out write nothing.
        found = self.found
        while True:
            kept = [[run for run in process if provided(run, any_write)] for process in found]
            any_write = frozenset(itertools.chain(*(run.written() for process in kept for run in process)))
            if kept == found:
                break
            found = kept
        for combination in itertools.product(*found):
            value_of = self.registers(combination)
            if may_be is not None and holds(self.test.condition, value_of) is (not may_be):
                continue
            if self.test.filter is not None and holds(self.test.filter, value_of) is False:
                continue
            written = frozenset(itertools.chain(*(run.written() for run in combination)))
            if all(provided(run, written) for run in combination):
                yield combination

    def allowed(self, may_be):
        """Yields of each allowed execution whether the condition holds, and the flags.

        With `may_be` only those are looked at for which the condition has that value.
        """
        for combination in self.combinations(may_be):
            yield from self.of_combination(combination, may_be)

    def of_combination(self, combination, may_be):
        events, process_of = [], []
        places = sorted({event.loc for run in combination for event in run.events if event.loc})
        for loc in places:
            events.append(Event("W", loc, self.test.init.get(loc, 0), "IW"))
            process_of.append(None)
        first = []
        for number, run in enumerate(combination):
            first.append(len(events))
            events += run.events
            process_of += [number] * len(run.events)
        structure = cat.Structure(self.model, len(events))
        env = self.given(structure, events, process_of, first, combination)
        value_of = self.registers(combination)
        sources = self.sources(events, process_of)
        reads = [read for read, _ in sources]

        def final(co):
            """Whether the condition has the wanted value when writes are in the order `co`."""
            last = {}
            for at, event in enumerate(events):
                if event.kind == "W" and not co[at]:
                    last[event.loc] = event.value

            def known(what):
                return last.get(what, self.test.init.get(what, 0)) if isinstance(what, str) else value_of(what)

            if self.test.filter is not None and not holds(self.test.filter, known):
                return None
            return holds(self.test.condition, known)

        accept = lambda co: final(co) is not None and may_be in (None, final(co))
        for chosen in itertools.product(*(writes for _, writes in sources)):
            rf = structure.relation(zip(chosen, reads))
            execution = dict(env, rf=rf)
            execution["rfi"] = tuple(row & one for row, one in zip(rf, env["int"]))
            execution["rfe"] = tuple(row & ~one for row, one in zip(rf, env["int"]))
            orders = lambda structure, env: self.orders(structure, env, events, dict(zip(reads, chosen)))
            self.checked += 1
            for result, flags in structure.executions(execution, accept, orders):
                yield final(result["co"]), flags

    def sources(self, events, process_of):
        """The writes that each read may return the value of, without those of locks."""
        found = []
        for read, event in enumerate(events):
            if event.kind != "R":
                continue
            writes = [
                write
                for write, other in enumerate(events)
                if other.kind == "W"
                and (other.loc, other.value) == (event.loc, event.value)
                # Not one that comes later.
                and not (process_of[write] == process_of[read] and write > read)
            ]
            found.append((read, writes))
        return found

    def given(self, structure, events, process_of, first, combination):
        """The sets and relations that do not depend on the order of writes."""
        numbers = range(len(events))
        members = lambda test: sum(1 << at for at in numbers if test(events[at]))
        relation = structure.relation
        pairs = [(a, b) for a in numbers for b in numbers]
        same = lambda a, b: process_of[a] is not None and process_of[a] == process_of[b]
        loc = [(a, b) for a, b in pairs if events[a].loc is not None and events[a].loc == events[b].loc]
        env = {
            "_": structure.all,
            "id": structure.id,
            "emptyset": 0,
            "R": members(lambda event: event.kind == "R"),
            "W": members(lambda event: event.kind == "W"),
            "F": members(lambda event: event.kind == "F"),
            "M": members(lambda event: event.kind != "F"),
            "IW": members(lambda event: event.tag == "IW"),
            # The final value of a lock is not tested, which is all that the model needs these for.
            "FW": 0,
            "po": relation((a, b) for a, b in pairs if same(a, b) and a < b),
            "int": relation((a, b) for a, b in pairs if a == b or same(a, b)),
            "ext": relation((a, b) for a, b in pairs if a != b and not same(a, b)),
            "loc": relation(loc),
            "po-loc": relation((a, b) for a, b in loc if same(a, b) and a < b),
            "differ": relation((a, b) for a, b in pairs if events[a].value != events[b].value),
            # The first write of a place is before the others.
            "co0": relation((a, b) for a, b in loc if events[a].tag == "IW" and events[b].kind == "W" and a != b),
        }
        for kind in self.LOCKS:
            env[kind] = members(lambda event, kind=kind: event.kind == kind)
        in_rmw = 0
        for name in ("addr", "data", "ctrl", "rmw"):
            env[name] = relation(
                (base + a, base + b) for base, run in zip(first, combination) for a, b in run.edges[name]
            )
        for base, run in zip(first, combination):
            in_rmw |= sum(1 << (base + at) for at in run.in_rmw)
        env["RMW"] = in_rmw
        for tag in {event.tag for event in events if event.tag and event.tag != "IW"}:
            env[tag[0].upper() + tag[1:]] = members(lambda event, tag=tag: event.tag == tag)
        # Not to be taken for sets of memory accesses.
        for name in ("Srcu-lock", "Srcu-unlock", "Sync-srcu", "After-srcu-read-unlock"):
            env.setdefault(name, 0)
        return env

    def orders(self, structure, env, events, source):
        """Yields the coherence orders that agree with the values read by each process.

        Others violate the model's check "coherence" or "atomic", which is made of these, too.
        """
        rf, po_loc = env["rf"], env["po-loc"]
        writes = env["W"]
        reads = env["R"]
        within = lambda a, b: tuple(row & b if one & a else 0 for row, one in zip(po_loc, structure.id))
        back = cat.inverse(rf)
        seen = [
            within(writes, writes),
            cat.compose(rf, within(reads, writes)),
            cat.compose(within(writes, reads), back),
            cat.compose(cat.compose(rf, within(reads, reads)), back),
            env["co0"],
        ]
        before = [0] * structure.count
        for relation in seen:
            for at, row in enumerate(relation):
                before[at] |= row & ~(1 << at)
        before = cat.closure(tuple(before))
        if any(row & one for row, one in zip(before, structure.id)):
            return
        follows = {}
        for at, row in enumerate(env["rmw"]):
            if at in source and row:
                follows[row.bit_length() - 1] = source[at]
        places = {}
        for at in cat.bits(writes):
            places.setdefault(events[at].loc, []).append(at)
        options = [list(self.linear(members, before, follows)) for members in places.values()]
        for chosen in itertools.product(*options):
            rows = [0] * structure.count
            for order in chosen:
                after = 0
                for at in reversed(order):
                    rows[at] = after
                    after |= 1 << at
            yield tuple(rows)

    def linear(self, members, before, follows, done=()):
        """The orders of `members` that extend `before`.

        The write of an update is right behind the write that it has read.
        """
        if len(done) == len(members):
            yield done
            return
        left = [at for at in members if at not in done]
        for at in left:
            if any(before[other] >> at & 1 for other in left if other != at):
                continue
            if at in follows and (not done or done[-1] != follows[at]):
                continue
            yield from self.linear(members, before, follows, done + (at,))


def verdict(test, model):
    """Returns the model's result of the test and the number of candidates checked."""
    candidates = Candidates(test, model)
    flags = set()
    if test.is_plain():
        # Each execution may have a race.
        found = set()
        for holds_at_end, raised in candidates.allowed(None):
            found.add(holds_at_end)
            flags |= raised
    else:
        found = set()
        for wanted in (True, False):
            for holds_at_end, raised in candidates.allowed(wanted):
                found.add(holds_at_end)
                flags |= raised
                break
    if not found:
        # As the kernel's scripts have it.
        return "DEADLOCK", candidates.checked
    other = flags - {"data-race", "mixed-accesses"}
    if other:
        raise LitmusError(f"the model says: {', '.join(sorted(other))}")
    word = {(True,): "Always", (False,): "Never"}.get(tuple(found), "Sometimes")
    return word + (" DATARACE" if "data-race" in flags else ""), candidates.checked
