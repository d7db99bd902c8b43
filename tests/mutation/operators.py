"""Mutants of a C or C++ file: each is one small change of one expression or statement, by one of eight operators.

The syntax tree is tree-sitter's, which needs no compile command and goes on after what it does not know.
"""

import dataclasses
import itertools
import re

import tree_sitter
import tree_sitter_cpp

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
# Attributes before or after a function's signature; without them tree-sitter reads it as something else.
ATTRIBUTES = re.compile(rb"\b(?:NETSUM_INLINE|HWY_ATTR|HWY_NOINLINE|HWY_INLINE|NETSUM_EXPORT)\b")

BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&"}
ASSIGNED = {f"{old}=": f"{new}=" for old, new in ARITHMETIC.items()}
STEPS = {"++": "--", "--": "++"}
OPERATORS = ("relational", "arithmetic", "logical", "condition", "constant", "deletion", "return", "arguments")

# What the compiler needs as constants, and text that is no expression: no mutants within.
SKIPPED = {
    "attribute_declaration",
    "concept_definition",
    "decltype",
    "enumerator",
    "preproc_call",
    "preproc_def",
    "preproc_function_def",
    "preproc_include",
    "requires_clause",
    "sizeof_expression",
    "static_assert_declaration",
    "string_literal",
    "template_argument_list",
    "template_parameter_list",
    "type_descriptor",
}
LOOPS = {"while_statement", "do_statement", "for_statement"}
BRANCHES = {"if_statement", "conditional_expression", *LOOPS}
# Functions whose first two arguments may change places.
COMMUTATIVE = re.compile(r"(?:\w+::)*(?:Add|And|Max|Min|Mul|Or|Xor|max|memcmp|min)")
# No test can fail because of an assertion that is too weak.
ASSERTION = re.compile(r"\w*ASSERT\(")
INTEGER = re.compile(r"(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9']+)([uUlL]*)")
FLOAT = re.compile(r"[0-9']*\.[0-9']*(?:[eE][-+]?[0-9]+)?[fF]?|[0-9]+[eE][-+]?[0-9]+[fF]?")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """The bytes from `start` to `end` of `file` become `new`. Numbers count from 1 within the file."""

    file: str
    number: int
    operator: str
    form: str  # expression, condition, statement or return: how a switch can choose between the two texts
    start: int
    end: int
    first_line: int
    last_line: int
    new: str
    switchable: bool  # not where the compiler evaluates a constant, and not in the kernel

    @property
    def name(self):
        return f"{self.file}:{self.first_line}:{self.operator}:{self.number}"


@dataclasses.dataclass
class Finder:
    """Walks over a syntax tree and collects mutants."""

    file: str
    text: bytes
    mutants: list = dataclasses.field(default_factory=list)

    def source(self, node):
        return self.text[node.start_byte : node.end_byte].decode()

    def add(self, operator, form, node, new, constant):
        old = self.source(node)
        new = re.sub(r"//[^\n]*", "", new) if "\n" in new else new
        new = re.sub(r"\s*\n\s*", " ", new)
        if "\n#" in old or new == old:
            return
        place = (node.start_byte, node.end_byte, node.start_point[0] + 1, node.end_point[0] + 1)
        switchable = not constant and ".bpf." not in self.file
        self.mutants.append(Mutant(self.file, len(self.mutants) + 1, operator, form, *place, new, switchable))

    def replace(self, node, part, new):
        """The text of the node with that of one of its parts replaced."""
        before = self.text[node.start_byte : part.start_byte].decode()
        return before + new + self.text[part.end_byte : node.end_byte].decode()

    def binary(self, node, constant):
        left, sign, right = (node.child_by_field_name(name) for name in ("left", "operator", "right"))
        if sign is None or left is None or right is None:
            return
        operator = self.source(sign)
        if operator in BOUNDARY:
            self.add("relational", "expression", node, self.replace(node, sign, BOUNDARY[operator]), constant)
        elif operator in ARITHMETIC:
            self.add("arithmetic", "expression", node, self.replace(node, sign, ARITHMETIC[operator]), constant)
        elif operator in ("&&", "||"):
            self.add("logical", "condition", node, self.source(left), constant)
            self.add("logical", "condition", node, self.source(right), constant)
        elif operator in ASSIGNED:
            self.add("arithmetic", "expression", node, self.replace(node, sign, ASSIGNED[operator]), constant)
        elif operator in STEPS:
            self.add("arithmetic", "expression", node, self.replace(node, sign, STEPS[operator]), constant)

    def unary(self, node, constant):
        sign = node.child_by_field_name("operator")
        argument = node.child_by_field_name("argument")
        if self.source(sign) in STEPS:
            self.add("arithmetic", "expression", node, self.replace(node, sign, STEPS[self.source(sign)]), constant)
        elif self.source(sign) == "!":
            self.add("logical", "condition", node, self.source(argument), constant)
        elif self.source(sign) in ("-", "~"):
            self.add("arithmetic", "expression", node, self.source(argument), constant)

    def condition(self, node, constant):
        condition = node.child_by_field_name("condition")
        if condition is None:
            return
        if condition.type in ("condition_clause", "parenthesized_expression"):
            condition = condition.child_by_field_name("value") or next(iter(condition.named_children), None)
        if condition is None or condition.type in ("declaration", "condition_declaration", "init_statement"):
            return
        if "constexpr" in self.text[node.start_byte : condition.start_byte].decode():
            return
        for value in ("false",) if node.type in LOOPS else ("false", "true"):
            self.add("condition", "condition", condition, value, constant)

    def constant(self, node, constant):
        text = self.source(node)
        if integer := INTEGER.fullmatch(text):
            value = int(integer.group(1).replace("'", ""), 0) if text.strip("uUlL") != "0" else 0
            self.add("constant", "expression", node, f"({text} + 1)", constant)
            if value > 0:
                self.add("constant", "expression", node, f"({text} - 1)", constant)
        elif FLOAT.fullmatch(text):
            self.add("constant", "expression", node, f"({text} + 1)", constant)

    def arguments(self, node, constant):
        arguments = node.child_by_field_name("arguments")
        if COMMUTATIVE.fullmatch(self.source(node.child_by_field_name("function"))):
            return
        given = [child for child in arguments.named_children if child.type != "comment"] if arguments else []
        for first, second in itertools.pairwise(given):
            kinds = {first.type, second.type}
            if kinds & {
                "lambda_expression",
                "string_literal",
                "concatenated_string",
                "initializer_list",
                "type_descriptor",
            }:
                continue
            swapped = self.source(second) + self.text[first.end_byte : second.start_byte].decode() + self.source(first)
            before = self.text[node.start_byte : first.start_byte].decode()
            after = self.text[second.end_byte : node.end_byte].decode()
            self.add("arguments", "expression", node, before + swapped + after, constant)

    def visit(self, node, in_function, constant):
        if node.type in SKIPPED or (node.type == "expression_statement" and ASSERTION.match(self.source(node))):
            return
        if node.type == "case_statement" and (value := node.child_by_field_name("value")):
            for child in node.children:
                if child != value:
                    self.visit(child, in_function, constant)
            return
        if node.type in ("declaration", "field_declaration"):
            constant = any(self.source(child) == "constexpr" for child in node.children)
        in_function = in_function or node.type == "compound_statement"
        if node.type in ("binary_expression", "assignment_expression"):
            self.binary(node, constant)
        elif node.type in ("unary_expression", "update_expression"):
            self.unary(node, constant)
        elif node.type == "number_literal":
            self.constant(node, constant)
        elif node.type in ("true", "false"):
            self.add("constant", "expression", node, "false" if node.type == "true" else "true", constant)
        elif node.type == "call_expression":
            self.arguments(node, constant)
        elif node.type in ("expression_statement", "break_statement", "continue_statement") and in_function:
            if self.source(node) != ";" and node.parent.type != "lambda_expression":
                self.add("deletion", "statement", node, ";", constant)
        elif node.type == "return_statement":
            value = next((child for child in node.named_children if child.type != "comment"), None)
            if value is None:
                self.add("deletion", "statement", node, ";", constant)
            elif self.source(value) not in ("{}", "0", "false", "nullptr"):
                self.add("return", "return", node, "return {};", constant)
        if node.type in BRANCHES:
            self.condition(node, constant)
        for child in node.children:
            self.visit(child, in_function, constant)


def mutants_of(file, text):
    """All mutants of the text of a file."""
    finder = Finder(file, text)
    finder.visit(PARSER.parse(ATTRIBUTES.sub(lambda found: b" " * len(found[0]), text)).root_node, False, False)
    return finder.mutants


def changed(text, mutant):
    """The text with one mutant in it."""
    return text[: mutant.start] + mutant.new.encode() + text[mutant.end :]


def switched(text, mutants):
    """The text with all mutants in it, and the places of what it has because of each: (start, end, mutant).

    NETSUM_MUTANT(number) is true of the one that was chosen when the program began. Lines keep their numbers.
    """
    inserts = []  # place, order at that place, text, mutant: what begins at a place follows what ends there, the wider outside
    for mutant in mutants:
        on = f"NETSUM_MUTANT({mutant.number})"
        before, after = {
            "expression": (f"({on} ? ({mutant.new}) : (", "))"),
            "condition": (f"({on} ? !!({mutant.new}) : !!(", "))"),
            "statement": (f"{{ if (!{on}) ", " }"),
            "return": (f"{{ if ({on}) {mutant.new} ", " }"),
        }[mutant.form]
        width = mutant.end - mutant.start
        inserts.append((mutant.start, (1, -width, mutant.number), before, mutant))
        inserts.append((mutant.end, (0, width, -mutant.number), after, mutant))
    made = bytearray()
    places = []
    done = 0
    for place, _, inserted, mutant in sorted(inserts, key=lambda insert: insert[:2]):
        made += text[done:place]
        places.append((len(made), len(made) + len(inserted.encode()), mutant))
        made += inserted.encode()
        done = place
    return bytes(made + text[done:]), places
