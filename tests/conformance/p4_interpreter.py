"""Reads P4-16 programs for v1model and TNA: as much of the language as aggregator/p4 uses. p4_machine and p4_tna_machine run
them, on packets in memory.

It is for tests where there is no P4 compiler, and strict where they are: names and fields must be declared, both sides of an
operator and of an assignment must have the same width, variables must be set before they are read, and a register is read
and written once per pass of a packet at most. What is not executed is only parsed.
"""

import dataclasses
import re
import subprocess
import tempfile
from pathlib import Path

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+w)?(?:0x[0-9a-fA-F]+|\d+))|(?P<name>[A-Za-z_]\w*)|(?P<string>\"[^\"]*\")"
    r"|(?P<sign>&&&|\.\.|\+\+|<<|<=|>=|==|!=|&&|\|\||[-+*/~!&|^<>=?:;,.(){}\[\]@]))"
)
# By binding strength, loosest first.
BINARY = [
    ["||"],
    ["&&"],
    ["==", "!="],
    ["<", ">", "<=", ">="],
    ["|"],
    ["^"],
    ["&"],
    ["<<", ">>"],
    ["++", "+", "-"],
    ["*"],
]


class P4Error(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Bits:
    """A value of type bit<width>. Plain ints are constants without a width."""

    value: int
    width: int


def as_bits(value, width, what="value"):
    if isinstance(value, Bits):
        if value.width != width:
            raise P4Error(f"{what}: bit<{value.width}> for bit<{width}>")
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise P4Error(f"{what}: {value!r} for bit<{width}>")
    if value < 0 or value >> width:
        raise P4Error(f"{what}: {value} does not fit bit<{width}>")
    return Bits(value, width)


def number_of(value):
    return value.value if isinstance(value, Bits) else value


# --- Parsing -----------------------------------------------------------------------------------------------------------


class Source:
    """Tokens, and a position in them."""

    def __init__(self, text):
        self.tokens, self.at = [], 0
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if not match:
                raise P4Error(f"unknown text: {text[position : position + 40]!r}")
            kind = match.lastgroup
            self.tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()
        self.tokens.append(("end", "", len(text)))

    def peek(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][1]

    def kind(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][0]

    def take(self, wanted=None):
        text = self.tokens[self.at][1]
        if wanted is not None and text != wanted:
            around = " ".join(token[1] for token in self.tokens[max(0, self.at - 8) : self.at + 4])
            raise P4Error(f"{wanted!r} expected, not {text!r}, in: {around}")
        self.at += 1
        return text

    def maybe(self, wanted):
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def shift_right(self):
        """Two > side by side: those of nested type arguments are the same signs."""
        return self.peek() == ">" and self.peek(1) == ">" and self.tokens[self.at + 1][2] == self.tokens[self.at][2] + 1

    def annotation(self):
        """(name, arguments as text)."""
        name = self.take()
        self.take("(")
        arguments = []
        while not self.maybe(")"):
            arguments.append(self.take())
        return name, arguments

    # Types: ("bit", width), ("bool",) or ("name", name).
    def type(self):
        name = self.take()
        if name == "bool":
            return ("bool",)
        if name != "bit":
            return ("name", name)
        self.take("<")
        width = int(self.take())
        self.take(">")
        return ("bit", width)

    def at_type(self):
        return self.peek() in ("bit", "bool") and self.peek(1) != "("

    def parameters(self):
        self.take("(")
        found = []
        while not self.maybe(")"):
            direction = self.take() if self.peek() in ("in", "out", "inout") else ""
            kind = self.type()
            found.append((kind, self.take(), direction))
            self.maybe(",")
        return found

    # Expressions: tuples.
    def expression(self):
        condition = self.binary(0)
        if not self.maybe("?"):
            return condition
        yes = self.expression()
        self.take(":")
        return ("?", condition, yes, self.expression())

    def binary(self, level):
        if level == len(BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while True:
            sign = ">>" if self.shift_right() else self.peek()
            if sign not in BINARY[level] or (sign == ">" and self.shift_right()):
                return left
            self.at += 2 if sign == ">>" else 1
            left = (sign, left, self.binary(level + 1))

    def unary(self):
        if self.peek() in ("~", "!", "-"):
            sign = self.take()
            return ("unary", sign, self.unary())
        if self.peek() == "(" and self.peek(1) in ("bit", "bool"):
            self.take()
            kind = self.type()
            self.take(")")
            return ("cast", kind, self.unary())
        return self.postfix()

    def postfix(self):
        if self.maybe("("):
            left = self.expression()
            self.take(")")
        elif self.maybe("{"):
            left = ("list", self.list("}"))
        elif self.kind() == "number":
            left = ("constant", parsed_number(self.take()))
        elif self.kind() == "name":
            name = self.take()
            left = ("constant", name == "true") if name in ("true", "false") else ("name", name)
        else:
            raise P4Error(f"expression expected, not {self.peek()!r}")
        while True:
            if self.maybe("."):
                left = ("field", left, self.take())
            elif self.maybe("("):
                left = ("call", left, self.list(")"))
            elif self.maybe("["):
                first = self.expression()
                left = ("slice", left, first, self.expression()) if self.maybe(":") else ("index", left, first)
                self.take("]")
            else:
                return left

    def list(self, end):
        found = []
        while not self.maybe(end):
            found.append(self.expression())
            if self.peek() != end:
                self.take(",")
        return found

    # Statements.
    def block(self):
        self.take("{")
        found = []
        while not self.maybe("}"):
            found.append(self.statement())
        return ("block", found)

    def statement(self):
        if self.peek() == "{":
            return self.block()
        if self.maybe("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            yes = self.statement()
            return ("if", condition, yes, self.statement() if self.maybe("else") else None)
        if self.at_type():
            return self.variable()
        left = self.postfix()
        if self.maybe("="):
            left = ("=", left, self.expression())
        elif left[0] != "call":
            raise P4Error(f"not a statement: {left}")
        self.take(";")
        return left

    def variable(self):
        kind, name = self.type(), self.take()
        value = self.expression() if self.maybe("=") else None
        self.take(";")
        return ("variable", kind, name, value)

    # Keysets of select expressions and table entries: (value, mask), (low, "..", high) or None for any.
    def keyset(self):
        if self.peek() in ("_", "default"):
            self.take()
            return None
        value = self.expression()
        if self.maybe("&&&"):
            return ("mask", value, self.expression())
        if self.maybe(".."):
            return ("range", value, self.expression())
        return ("mask", value, None)

    def keysets(self):
        if self.peek() != "(":
            return [self.keyset()]
        self.take("(")
        found = [self.keyset()]
        while self.maybe(","):
            found.append(self.keyset())
        self.take(")")
        return found


def parsed_number(text):
    if "w" not in text:
        return int(text, 0)
    width, value = text.split("w")
    return as_bits(int(value, 0), int(width))


@dataclasses.dataclass
class Table:
    keys: list = dataclasses.field(default_factory=list)  # (expression, kind of match)
    actions: list = dataclasses.field(default_factory=list)
    default: tuple = ("NoAction", [])
    constants: list = dataclasses.field(default_factory=list)  # (keysets, action, arguments)
    entries: dict = dataclasses.field(default_factory=dict)  # exact keys: (action, arguments)


@dataclasses.dataclass
class Control:
    name: str
    parameters: list
    actions: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)
    instances: list = dataclasses.field(default_factory=list)  # (name, control or extern, arguments)
    types: dict = dataclasses.field(default_factory=dict)  # of an extern, by its name: the arguments between < and >
    stages: dict = dataclasses.field(default_factory=dict)  # by the name of an instance: @stage
    methods: dict = dataclasses.field(default_factory=dict)  # of an extern, by its name: (parameters, body)
    variables: list = dataclasses.field(default_factory=list)
    states: dict = dataclasses.field(default_factory=dict)
    body: tuple = ()


class Program:
    """What the text declares."""

    def __init__(self, text):
        self.types, self.controls = {}, {}  # types: name: (kind, [(type, name, elements or 0)])
        s = Source(text)
        while s.kind() != "end":
            word = s.take()
            if word == "@":  # for the control plane
                s.annotation()
            elif word in ("header", "struct"):
                name = s.take()
                self.types[name] = (word, self.fields(s))
            elif word in ("control", "parser"):
                control = Control(s.take(), s.parameters())
                self.controls[control.name] = control
                self.parser(s, control) if word == "parser" else self.control(s, control)
            elif word in ("V1Switch", "Pipeline"):
                s.take("(")
                self.main = [argument[1][1] for argument in s.list(")")]
                s.take()
                s.take(";")
            elif word == "Switch":  # of one pipeline
                s.take("(")
                assert s.list(")") == [("name", "pipe")]
                s.take("main")
                s.take(";")
            else:
                raise P4Error(f"unknown declaration: {word}")

    @staticmethod
    def fields(s):
        s.take("{")
        found = []
        while not s.maybe("}"):
            kind, elements = s.type(), 0
            if s.maybe("["):
                elements = int(s.take())
                s.take("]")
            found.append((kind, s.take(), elements))
            s.take(";")
        return found

    def control(self, s, control):
        s.take("{")
        while not s.maybe("}"):
            if s.maybe("action"):
                name = s.take()
                control.actions[name] = (s.parameters(), s.block())
            elif s.maybe("table"):
                name = s.take()
                control.tables[name] = self.table(s)
            elif s.maybe("apply"):
                control.body = s.block()
            elif s.at_type():
                control.variables.append(s.variable())
            else:
                self.instantiation(s, control)

    @staticmethod
    def instantiation(s, control):
        stage = None
        while s.maybe("@"):
            name, arguments = s.annotation()
            if name == "stage":
                stage = int(arguments[0])
        kind, types = s.take(), []
        if s.maybe("<"):
            while not s.maybe(">"):
                types.append(s.type())
                s.maybe(",")
        s.take("(")
        arguments = s.list(")")
        name = s.take()
        control.instances.append((name, kind, arguments))
        control.types[name], control.stages[name] = types, stage
        if s.maybe("="):  # the method of a RegisterAction
            for word in ("{", "void", "apply"):
                s.take(word)
            control.methods[name] = (s.parameters(), s.block())
            s.take("}")
        s.take(";")

    @staticmethod
    def table(s):
        table = Table()
        s.take("{")
        while not s.maybe("}"):
            s.maybe("const")
            word = s.take()
            s.take("=")
            if word == "key":
                s.take("{")
                while not s.maybe("}"):
                    expression = s.expression()
                    s.take(":")
                    table.keys.append((expression, s.take()))
                    s.take(";")
            elif word == "actions":
                s.take("{")
                while not s.maybe("}"):
                    table.actions.append(s.take())
                    s.take(";")
            elif word == "entries":
                s.take("{")
                while not s.maybe("}"):
                    keysets = s.keysets()
                    s.take(":")
                    action = s.take()
                    s.take("(")
                    table.constants.append((keysets, action, s.list(")")))
                    s.take(";")
            else:
                value = s.expression()
                if word == "default_action":
                    table.default = (value[1][1], value[2])
                s.take(";")
        return table

    def parser(self, s, control):
        s.take("{")
        while not s.maybe("}"):
            if s.peek() != "state":
                self.instantiation(s, control)
                continue
            s.take("state")
            name = s.take()
            s.take("{")
            statements, branches = [], []
            while not s.maybe("transition"):
                statements.append(s.statement())
            keys = []
            if s.maybe("select"):
                s.take("(")
                keys = s.list(")")
                s.take("{")
                while not s.maybe("}"):
                    keysets = s.keysets()
                    s.take(":")
                    branches.append((keysets, s.take()))
                    s.take(";")
            else:
                branches.append(([None], s.take()))
                s.take(";")
            s.take("}")
            control.states[name] = (statements, keys, branches)


def preprocessed(path, root, defines=()):
    """The text of a program, whose includes start at `root`."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("core.p4", "v1model.p4", "tna.p4", "t2na.p4"):
            (Path(folder) / name).write_text("")
        command = ["cpp", "-P", "-undef", "-nostdinc", "-I", str(root), "-I", folder]
        command += [f"-D{define}" for define in defines] + [str(path)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def load(path, root):
    return Program(preprocessed(path, root))


def matches(keyset, value, evaluate):
    if keyset is None:
        return True
    kind, first, second = keyset
    low = number_of(evaluate(first))
    if kind == "range":
        return low <= number_of(value) <= number_of(evaluate(second))
    if isinstance(value, Bits) and low >> value.width:
        raise P4Error(f"key {low} does not fit bit<{value.width}>")
    mask = -1 if second is None else number_of(evaluate(second))
    return number_of(value) & mask == low & mask
