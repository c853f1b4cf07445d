# SPDX-License-Identifier: GPL-2.0
"""Interpreter of the language cat, as far as the kernel's memory model uses it.

The kernel's own files tools/memory-model/linux-kernel.{bell,cat} and lock.cat are interpreted, so that the
model that is checked is the kernel's text. The language is described in "Syntax and semantics of the weak
consistency model specification language cat" (Alglave, Cousot, Maranget). Of the library of herd7 two files
are needed, cross.cat and cos-opt.cat, which stand here as functions.

Events are numbered from 0. A set of events is an integer, bit n of it event n; a relation is a tuple of such
sets, element n of it the successors of event n. Sets of relations are lists. Values are interned, so that an
expression whose variables are the same objects as in an earlier execution is not evaluated again.
"""

import re

TOKEN = re.compile(
    r"""\s+|//[^\n]*|\(\*|(?P<string>"[^"]*")|(?P<tag>'[A-Za-z][\w-]*)|(?P<name>[A-Za-z_][\w-]*)|(?P<number>0)
    |(?P<op>\^-1|\^\+|\^\*|\|\||\+\+|[|;\\&*+?~()\[\]{},=])""",
    re.VERBOSE,
)
KEYWORDS = frozenset(
    "let rec and in if then else try with from as include acyclic irreflexive empty flag show enum instructions".split()
)
# Infix operators, those that bind least first.
INFIX = ("|", "++", ";", "\\", "&", "*")


class CatError(Exception):
    """A text that this interpreter does not understand."""


class Node:
    """An expression: its kind, its parts, and the names that its value depends on."""

    def __init__(self, kind, *parts, free=()):
        self.kind = kind
        self.parts = parts
        names = set(free)
        for part in parts:
            if isinstance(part, Node):
                names |= set(part.free)
        self.free = tuple(sorted(names))


class Function:
    """A function of the model: its parameter, body, and the variables where it was defined."""

    def __init__(self, param, body, env):
        self.param, self.body, self.env = param, body, env


class Event(int):
    """One event, as the argument of a function."""


class Pair(tuple):
    """One pair of events, as the argument of a function."""


def tokens(text):
    """Splits `text`, without comments, which nest."""
    at, found = 0, []
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise CatError(f"unexpected text: {text[at:at + 40]!r}")
        at = match.end()
        if match.group() == "(*":
            depth = 1
            while depth:
                mark = re.compile(r"\(\*|\*\)").search(text, at)
                if not mark:
                    raise CatError("a comment has no end")
                depth += 1 if mark.group() == "(*" else -1
                at = mark.end()
        elif match.lastgroup:
            kind, word = match.lastgroup, match.group()
            found.append(("keyword" if word in KEYWORDS else kind, word))
    return found


class Parser:
    """Parses one file into a list of statements."""

    def __init__(self, text):
        self.tokens = tokens(text)
        self.at = 0

    def peek(self, ahead=0):
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ("end", "")

    def next(self):
        token = self.peek()
        self.at += 1
        return token

    def accept(self, *words):
        if self.peek()[1] in words and self.peek()[0] in ("op", "keyword"):
            return self.next()[1]
        return None

    def expect(self, word):
        if not self.accept(word):
            raise CatError(f"expected {word!r}, found {self.peek()[1]!r}")

    def name(self):
        kind, word = self.next()
        if kind != "name":
            raise CatError(f"expected a name, found {word!r}")
        return word

    def statements(self):
        found = []
        while self.peek()[0] != "end":
            if self.peek()[0] == "string":
                self.next()
                continue
            found.append(self.statement())
        return found

    def statement(self):
        word = self.next()[1]
        if word == "let":
            return self.bindings()
        if word == "include":
            return ("include", self.next()[1].strip('"'))
        if word == "flag":
            return self.check(self.next()[1], is_flag=True)
        if word in ("acyclic", "irreflexive", "empty"):
            return self.check(word, is_flag=False)
        if word == "~":
            return self.check("~" + self.next()[1], is_flag=False)
        if word == "show":
            self.name()
            while self.accept(","):
                self.name()
            return ("nothing",)
        if word == "enum":
            self.name()
            self.expect("=")
            tags = [self.next()[1]]
            while self.accept("||"):
                tags.append(self.next()[1])
            return ("enum", tags)
        if word == "instructions":
            self.name()
            self.expect("[")
            self.name()
            self.expect("]")
            return ("nothing",)
        if word == "with":
            name = self.name()
            self.expect("from")
            return ("choose", name, self.expression())
        raise CatError(f"no statement begins with {word!r}")

    def check(self, what, is_flag):
        if what == "~":
            what += self.next()[1]
        relation = self.expression()
        self.expect("as")
        return ("check", what, relation, self.name(), is_flag)

    def bindings(self):
        """Parses the part behind "let": ("let", is recursive, [(name, expression)])."""
        recursive = bool(self.accept("rec"))
        found = [self.binding()]
        while self.accept("and"):
            found.append(self.binding())
        return ("let", recursive, found)

    def binding(self):
        name = self.name()
        param = None
        if self.peek()[0] == "name":
            param = self.name()
        elif self.accept("("):
            param = self.name()
            self.expect(")")
        self.expect("=")
        body = self.expression()
        if param:
            return name, Node("function", param, body, free=set(body.free) - {param})
        return name, body

    def expression(self):
        if self.accept("let"):
            _, recursive, bindings = self.bindings()
            self.expect("in")
            body = self.expression()
            names = {name for name, _ in bindings}
            free = set(body.free) - names
            for _, value in bindings:
                free |= set(value.free) - (names if recursive else set())
            node = Node("let", recursive, bindings, body)
            node.free = tuple(sorted(free))
            return node
        if self.accept("if"):
            variant = self.next()[1].strip('"')
            self.expect("then")
            yes = self.expression()
            self.expect("else")
            no = self.expression()
            return yes if variant == "lkmmv2" else no
        if self.accept("try"):
            name = self.name()
            self.expect("with")
            return Node("try", name, self.expression(), free=[name])
        return self.infix(0)

    def infix(self, level):
        if level == len(INFIX):
            return self.complement()
        left = self.infix(level + 1)
        if INFIX[level] == "\\":
            while self.accept("\\"):
                left = Node("\\", left, self.infix(level + 1))
        elif self.accept(INFIX[level]):
            left = Node(INFIX[level], left, self.infix(level))
        return left

    def complement(self):
        if self.accept("~"):
            return Node("~", self.complement(), free=["_"])
        return self.postfix()

    def begins_operand(self, ahead):
        kind, word = self.peek(ahead)
        return kind in ("name", "number") or (kind == "op" and word in "([{~")

    def postfix(self):
        node = self.operand()
        while True:
            kind, word = self.peek()
            if kind != "op":
                return node
            # "*" is the Cartesian product if an operand follows it.
            if word in ("^-1", "^+", "^*", "+", "?") or (word == "*" and not self.begins_operand(1)):
                self.next()
                node = Node("post" + word.lstrip("^"), node)
            else:
                return node

    def operand(self):
        kind, word = self.next()
        if kind == "number":
            return Node("nothing")
        if kind == "name":
            node = Node("variable", word, free=[word])
            if self.peek()[0] == "name" or self.peek()[1] in ("(", "{"):
                return Node("apply", node, self.operand())
            return node
        if word == "(":
            node = self.expression()
            self.expect(")")
            return node
        if word == "[":
            node = self.expression()
            self.expect("]")
            return Node("identity", node)
        if word == "{":
            node = self.expression()
            self.expect("}")
            return Node("single", node)
        raise CatError(f"no expression begins with {word!r}")


def bits(members):
    """The events of a set."""
    while members:
        low = members & -members
        yield low.bit_length() - 1
        members ^= low


def compose(a, b):
    found = []
    for row in a:
        out = 0
        while row:
            low = row & -row
            out |= b[low.bit_length() - 1]
            row ^= low
        found.append(out)
    return tuple(found)


def closure(relation):
    rows = list(relation)
    for middle, _ in enumerate(rows):
        bit, after = 1 << middle, rows[middle]
        if after:
            for at, row in enumerate(rows):
                if row & bit:
                    rows[at] = row | after
    return tuple(rows)


def inverse(relation):
    rows = [0] * len(relation)
    for at, row in enumerate(relation):
        for to in bits(row):
            rows[to] |= 1 << at
    return tuple(rows)


def is_acyclic(relation):
    """Whether there is no cycle: removes events without successors until none is left."""
    left = (1 << len(relation)) - 1
    while left:
        ends = 0
        for at in bits(left):
            if not relation[at] & left:
                ends |= 1 << at
        if not ends:
            return False
        left &= ~ends
    return True


class Model:
    """The statements of the model's files."""

    def __init__(self, directory):
        self.directory = directory
        self.statements = self.parse("linux-kernel.bell") + self.parse("linux-kernel.cat")

    def parse(self, name):
        with open(f"{self.directory}/{name}", encoding="utf-8") as file:
            parsed = Parser(file.read()).statements()
        found = []
        for statement in parsed:
            if statement[0] != "include":
                found.append(statement)
            elif statement[1] == "lock.cat":
                found += self.parse("lock.cat")
            elif statement[1] == "cos-opt.cat":
                found.append(("coherence",))
            elif statement[1] != "cross.cat":
                raise CatError(f"unknown file {statement[1]}")
        return found


class Structure:
    """The events of one run of all processes; the values that were computed of them."""

    def __init__(self, model, count):
        self.model = model
        self.count = count
        self.all = (1 << count) - 1
        self.empty = (0,) * count
        self.id = tuple(1 << at for at in range(count))
        self.interned = {}
        self.known = {}

    def intern(self, value):
        if isinstance(value, (tuple, int)) and not isinstance(value, (Event, Pair)):
            return self.interned.setdefault(value, value)
        return value

    def relation(self, pairs):
        rows = [0] * self.count
        for a, b in pairs:
            rows[a] |= 1 << b
        return tuple(rows)

    def executions(self, env, accept, orders):
        """Yields the variables and the raised flags of each execution that the model allows.

        `env` has the events and relations that are given. `orders` yields the coherence orders of the
        writes, of which only those that `accept` takes are looked at.
        """
        env = {name: self.intern(value) for name, value in env.items()}
        yield from self.run(0, env, frozenset(), accept, orders)

    def run(self, at, env, flags, accept, orders):
        statements = self.model.statements
        while at < len(statements):
            statement = statements[at]
            at += 1
            kind = statement[0]
            if kind == "let":
                self.bind(statement, env)
            elif kind == "check":
                _, what, node, name, is_flag = statement
                holds = self.holds(what, node, env)
                if is_flag and holds:
                    flags |= {name}
                elif not is_flag and not holds:
                    return
            elif kind == "enum":
                # A tag is the name of a set; there is one for each, also if no event has it.
                for tag in statement[1]:
                    env.setdefault(tag[1].upper() + tag[2:], 0)
            elif kind == "choose":
                _, name, node = statement
                for value in self.value(node, env):
                    yield from self.run(at, dict(env, **{name: self.intern(value)}), flags, accept, orders)
                return
            elif kind == "coherence":
                for co in orders(self, env):
                    if accept(co):
                        yield from self.run(at, self.with_coherence(env, co), flags, accept, orders)
                return
        yield env, flags

    def with_coherence(self, env, co):
        internal = env["int"]
        fr = compose(inverse(env["rf"]), co)
        fr = tuple(row & ~one for row, one in zip(fr, self.id))
        within = lambda relation: tuple(row & mask for row, mask in zip(relation, internal))
        beyond = lambda relation: tuple(row & ~mask for row, mask in zip(relation, internal))
        new = {"co": co, "coi": within(co), "coe": beyond(co), "fr": fr, "fri": within(fr), "fre": beyond(fr)}
        return dict(env, **{name: self.intern(value) for name, value in new.items()})

    def bind(self, statement, env):
        _, recursive, bindings = statement
        if not recursive:
            values = [self.value(node, env) for _, node in bindings]
        else:
            values = self.fixpoint(bindings, env)
        for (name, _), value in zip(bindings, values):
            env[name] = value

    def fixpoint(self, bindings, env):
        """The least solution of a recursive definition, from nothing on."""
        env = dict(env)
        for name, _ in bindings:
            env[name] = None
        while True:
            values = [self.value(node, env) for _, node in bindings]
            if all(env[name] is value for (name, _), value in zip(bindings, values)):
                return values
            for (name, _), value in zip(bindings, values):
                env[name] = value

    def holds(self, what, node, env):
        value = self.value(node, env)
        if what.startswith("~"):
            return not self.test(what[1:], value)
        return self.test(what, value)

    def test(self, what, value):
        if what == "empty":
            return not value or (isinstance(value, tuple) and not any(value))
        relation = self.as_relation(value)
        if what == "irreflexive":
            return not any(row & one for row, one in zip(relation, self.id))
        if what == "acyclic":
            return is_acyclic(relation)
        raise CatError(f"unknown check {what!r}")

    def as_relation(self, value):
        if value is None:
            return self.empty
        if not isinstance(value, tuple):
            raise CatError("a relation is needed")
        return value

    def as_set(self, value):
        if value is None:
            return 0
        if not isinstance(value, int):
            raise CatError("a set is needed")
        return value

    def value(self, node, env):
        kind = node.kind
        if kind == "variable":
            if node.parts[0] not in env:
                raise CatError(f"unknown name {node.parts[0]!r}")
            return env[node.parts[0]]
        key = (node, *(id(env.get(name)) for name in node.free))
        if key in self.known:
            return self.known[key]
        value = self.intern(self.compute(node, env))
        # An argument of a function may be gone later, and its identity be that of another one.
        if not any(isinstance(env.get(name), (Event, Pair, list)) for name in node.free):
            self.known[key] = value
        return value

    def compute(self, node, env):
        kind, parts = node.kind, node.parts
        if kind in ("post*", "post+", "post?", "post-1", "~", "identity", "single"):
            return self.unary(kind, self.value(parts[0], env))
        if kind in INFIX:
            left, right = self.value(parts[0], env), self.value(parts[1], env)
            return self.binary(kind, left, right)
        if kind == "nothing":
            return None
        if kind == "let":
            recursive, bindings, body = parts
            env = dict(env)
            self.bind(("let", recursive, bindings), env)
            return self.value(body, env)
        if kind == "function":
            return Function(parts[0], parts[1], dict(env))
        if kind == "try":
            return env[parts[0]] if parts[0] in env else self.value(parts[1], env)
        if kind == "apply":
            return self.apply(parts[0], parts[1], env)
        raise CatError(f"unknown expression {kind}")

    def unary(self, kind, value):
        if kind == "single":
            return 1 << value
        if kind == "identity":
            members = self.as_set(value)
            return tuple(one & members for one in self.id)
        if kind == "~":
            if isinstance(value, tuple):
                return tuple(self.all & ~row for row in value)
            return self.all & ~self.as_set(value)
        relation = self.as_relation(value)
        if kind == "post-1":
            return inverse(relation)
        if kind in ("post+", "post*"):
            relation = closure(relation)
        if kind in ("post?", "post*"):
            relation = tuple(row | one for row, one in zip(relation, self.id))
        return relation

    def binary(self, kind, left, right):
        if kind == "++":
            # Adds a pair to a relation, or a relation to a set of relations.
            if isinstance(left, Pair):
                rows = list(self.as_relation(right))
                rows[left[0]] |= 1 << left[1]
                return tuple(rows)
            return [left] + list(right or [])
        if kind == "*":
            left, right = self.as_set(left), self.as_set(right)
            return tuple(right if one & left else 0 for one in self.id)
        if kind == ";":
            return compose(self.as_relation(left), self.as_relation(right))
        if left is None:
            return right if kind == "|" else None
        if right is None:
            return None if kind == "&" else left
        if isinstance(left, tuple) != isinstance(right, tuple):
            raise CatError(f"a set and a relation at {kind!r}")
        if kind == "|":
            operate = lambda a, b: a | b
        elif kind == "&":
            operate = lambda a, b: a & b
        else:
            operate = lambda a, b: a & ~b
        if isinstance(left, tuple):
            return tuple(map(operate, left, right))
        return operate(left, right)

    def apply(self, function, argument, env):
        name = function.parts[0]
        if name == "map":
            # As "map f s": a second argument follows.
            if argument.kind != "apply":
                raise CatError("map needs a function and a set")
            each, members = self.value(argument.parts[0], env), self.value(argument.parts[1], env)
            return [self.call(each, member) for member in self.elements(members)]
        value = self.value(argument, env)
        if name in env:
            return self.call(env[name], value)
        if name == "domain":
            relation = self.as_relation(value)
            return sum(one for row, one in zip(relation, self.id) if row)
        if name == "range":
            out = 0
            for row in self.as_relation(value):
                out |= row
            return out
        if name == "fencerel":
            members = self.as_set(value)
            return compose(tuple(row & members for row in env["po"]), env["po"])
        if name == "singlestep":
            relation = self.as_relation(value)
            longer = compose(relation, relation)
            return tuple(row & ~more for row, more in zip(relation, longer))
        if name == "different-values":
            return tuple(row & different for row, different in zip(self.as_relation(value), env["differ"]))
        if name == "cross":
            return self.cross(value)
        raise CatError(f"unknown function {name!r}")

    def elements(self, members):
        if isinstance(members, tuple):
            return [Pair((at, to)) for at, row in enumerate(members) for to in bits(row)]
        return [Event(at) for at in bits(self.as_set(members))]

    def call(self, function, value):
        return self.value(function.body, dict(function.env, **{function.param: value}))

    def cross(self, sets):
        """Each union of one relation of each of `sets`."""
        found = [self.empty]
        for one in sets:
            found = [tuple(a | b for a, b in zip(old, new)) for old in found for new in one]
        return found
