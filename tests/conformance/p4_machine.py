"""The machine under p4_interpreter: headers, registers, tables, and simple_switch's passes, multicast and recirculation."""

import collections
import dataclasses
import operator

from p4_interpreter import Bits, P4Error, as_bits, matches, number_of

STANDARD_METADATA = {
    "ingress_port": 9,
    "egress_spec": 9,
    "egress_port": 9,
    "instance_type": 32,
    "packet_length": 32,
    "mcast_grp": 16,
    "egress_rid": 16,
    "checksum_error": 1,
}
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
DROPPED = 511
RECIRCULATED = 4
MOST_PASSES = 64  # of a packet


class Record:
    """A header or struct."""

    def __init__(self, widths=None, parts=None, is_header=False, initial=None):
        self.widths = widths or {}
        self.parts = parts or {}
        self.values = dict.fromkeys(self.widths, initial)
        self.is_header, self.valid = is_header, False

    def get(self, name):
        if name in self.parts:
            return self.parts[name]
        if name not in self.widths:
            raise P4Error(f"no field {name}")
        if self.is_header and not self.valid:
            raise P4Error(f"field {name} of a header that is not valid")
        if self.values[name] is None:
            raise P4Error(f"field {name} is read before it is set")
        return self.values[name]

    def set(self, name, value):
        if name not in self.widths:
            raise P4Error(f"no field {name}")
        if self.is_header and not self.valid:
            raise P4Error(f"field {name} is set in a header that is not valid")
        self.values[name] = as_bits(value, self.widths[name], name)

    def copy(self):
        other = Record(self.widths, {name: part.copy() for name, part in self.parts.items()}, self.is_header)
        other.values, other.valid = dict(self.values), self.valid
        return other


class Stack:
    def __init__(self, elements):
        self.elements, self.used = elements, 0

    def copy(self):
        other = Stack([element.copy() for element in self.elements])
        other.used = self.used
        return other


class Register:
    def __init__(self, width, size):
        self.width, self.values, self.accesses = width, [0] * size, {"read": -1, "write": -1}

    def access(self, kind, pass_number, index):
        if self.accesses[kind] == pass_number:
            raise P4Error(f"second {kind}() of a register in a pass")
        self.accesses[kind] = pass_number
        if not 0 <= index < len(self.values):
            raise P4Error(f"register index {index}")


@dataclasses.dataclass
class Instance:
    """Of a control, with the externs and tables in it."""

    control: object
    parts: dict


class Machine:
    def __init__(self, program):
        self.program = program
        self.groups = {}  # multicast group: [(replication id, port)]
        self.counters = {}  # by the name of the counter
        self.tables, self.registers = {}, {}
        self.passes = 0
        self.instances = {name: self.instance(name) for name in program.main}

    def instance(self, name):
        control = self.program.controls[name]
        parts = dict(control.tables)
        self.tables.update(control.tables)
        for part, kind, arguments in control.instances:
            if kind == "register":
                parts[part] = Register(None, arguments[0][1])
                self.registers.setdefault(part, []).append(parts[part])
            elif kind == "counter":
                parts[part] = self.counters[part] = collections.Counter()
            else:
                parts[part] = self.instance(kind)
        return Instance(control, parts)

    def make(self, kind):
        what, fields = self.program.types[kind]
        widths, parts = {}, {}
        for field_type, name, elements in fields:
            if field_type[0] == "bit":
                widths[name] = field_type[1]
            elif elements:
                parts[name] = Stack([self.make(field_type[1]) for _ in range(elements)])
            else:
                parts[name] = self.make(field_type[1])
        # Metadata is 0 in simple_switch.
        record = Record(widths, parts, what == "header")
        if what == "struct":
            record.values = {name: Bits(0, width) for name, width in widths.items()}
        return record

    # --- One packet ------------------------------------------------------------------------------------------------

    def receive(self, port, frame):
        """Sends a frame in, and returns what comes out: [(port, frame)], in order."""
        waiting, sent = collections.deque([(port, frame, 0)]), []
        first = self.passes
        while waiting:
            if self.passes - first >= MOST_PASSES:
                raise P4Error("a packet does not leave the switch")
            self.one_pass(*waiting.popleft(), waiting, sent)
        return sent

    def one_pass(self, port, frame, instance_type, waiting, sent):
        self.passes += 1
        parse, _, ingress, egress, _, deparse = self.program.main
        h = self.make("headers_t")
        m = self.make("metadata_t")
        s = Record(STANDARD_METADATA)
        s.values = {name: Bits(0, width) for name, width in STANDARD_METADATA.items()}
        s.parts["parser_error"] = "NoError"
        for name, value in (("ingress_port", port), ("instance_type", instance_type), ("packet_length", len(frame))):
            s.set(name, value)
        packet = PacketIn(frame)
        try:
            Run(self, self.instances[parse], [packet, h, m, s]).parse()
        except EOFError:
            s.parts["parser_error"] = "PacketTooShort"
        Run(self, self.instances[ingress], [h, m, s]).apply()
        group, out_port = s.get("mcast_grp").value, s.get("egress_spec").value
        copies = self.groups.get(group, []) if group else [(0, out_port)] if out_port != DROPPED else []
        for replication_id, copy_port in copies:
            copy_h, copy_m, copy_s = h.copy(), m.copy(), Record(STANDARD_METADATA)
            copy_s.values = dict(s.values)
            copy_s.set("egress_rid", replication_id)
            copy_s.set("egress_port", copy_port)
            copy_s.set("egress_spec", 0)
            run = Run(self, self.instances[egress], [copy_h, copy_m, copy_s])
            run.apply()
            if copy_s.get("egress_spec").value == DROPPED:
                continue
            out = PacketOut()
            Run(self, self.instances[deparse], [out, copy_h]).apply()
            out_frame = bytes(out.data) + packet.rest()
            if run.recirculates:
                waiting.append((0, out_frame, RECIRCULATED))
            else:
                sent.append((copy_port, out_frame))


class PacketIn:
    def __init__(self, data):
        self.data, self.at = data, 0

    def rest(self):
        return self.data[self.at :]

    def extract(self, header):
        bits = sum(header.widths.values())
        if len(self.rest()) * 8 < bits:
            raise EOFError
        value = int.from_bytes(self.data[self.at : self.at + bits // 8], "big")
        self.at += bits // 8
        header.valid = True
        for name, width in header.widths.items():
            bits -= width
            header.set(name, value >> bits & (1 << width) - 1)


class PacketOut:
    def __init__(self):
        self.data = bytearray()

    def emit(self, what):
        for header in what.elements if isinstance(what, Stack) else [what]:
            if header.valid:
                value = bits = 0
                for name, width in header.widths.items():
                    value, bits = value << width | header.get(name).value, bits + width
                self.data += value.to_bytes(bits // 8, "big")


class Run:
    """One execution of a control: its names, and what they stand for."""

    def __init__(self, machine, instance, arguments):
        self.machine, self.instance = machine, instance
        control = instance.control
        self.names = {name: value for (_, name, _), value in zip(control.parameters, arguments, strict=True)}
        # Of variables, and of parameters that are no headers or structs.
        self.kinds = {name: kind for kind, name, _ in control.parameters if kind[0] != "name"}
        self.recirculates = False

    def apply(self):
        for variable in self.instance.control.variables:
            self.execute(variable)
        self.execute(self.instance.control.body)

    def parse(self):
        state = "start"
        while state not in ("accept", "reject"):
            statements, keys, branches = self.instance.control.states[state]
            for statement in statements:
                self.execute(statement)
            values = [self.evaluate(key) for key in keys]
            for keysets, to in branches:
                if keysets == [None] or all(matches(k, v, self.evaluate) for k, v in zip(keysets, values, strict=True)):
                    state = to
                    break
            else:
                raise P4Error(f"no branch of state {state}")

    # --- Statements ------------------------------------------------------------------------------------------------

    def execute(self, statement):
        kind = statement[0]
        if kind == "block":
            for each in statement[1]:
                self.execute(each)
        elif kind == "if":
            condition = self.evaluate(statement[1])
            if not isinstance(condition, bool):
                raise P4Error(f"condition is not a bool: {statement[1]}")
            if condition:
                self.execute(statement[2])
            elif statement[3]:
                self.execute(statement[3])
        elif kind == "variable":
            _, type_, name, value = statement
            self.kinds[name], self.names[name] = type_, None
            if value is not None:
                self.assign(("name", name), self.evaluate(value))
        elif kind == "=":
            self.assign(statement[1], self.evaluate(statement[2]))
        else:
            self.evaluate(statement)

    def assign(self, target, value):
        if target[0] == "field":
            self.evaluate(target[1]).set(target[2], value)
        elif target[0] == "name" and target[1] in self.kinds:
            kind = self.kinds[target[1]]
            if kind[0] == "bool" and not isinstance(value, bool):
                raise P4Error(f"{target[1]}: {value!r} for bool")
            self.names[target[1]] = value if kind[0] == "bool" else as_bits(value, kind[1], target[1])
        else:
            raise P4Error(f"cannot assign to {target}")

    # --- Expressions -----------------------------------------------------------------------------------------------

    def evaluate(self, e):
        kind = e[0]
        if kind == "constant":
            return e[1]
        if kind == "name":
            return self.name(e[1])
        if kind == "field":
            return self.field(e)
        if kind == "call":
            return self.call(e)
        if kind == "index":
            return self.evaluate(e[1]).elements[number_of(self.evaluate(e[2]))]
        if kind == "slice":
            value, high, low = self.evaluate(e[1]), number_of(self.evaluate(e[2])), number_of(self.evaluate(e[3]))
            if not isinstance(value, Bits) or not 0 <= low <= high < value.width:
                raise P4Error(f"slice [{high}:{low}] of {value}")
            return Bits(value.value >> low & (1 << high - low + 1) - 1, high - low + 1)
        if kind == "?":
            condition = self.evaluate(e[1])
            if not isinstance(condition, bool):
                raise P4Error(f"condition is not a bool: {e[1]}")
            return self.evaluate(e[2] if condition else e[3])
        if kind == "cast":
            value, width = number_of(self.evaluate(e[2])), e[1][1]
            return Bits(value & (1 << width) - 1, width)
        if kind == "unary":
            return self.unary(e[1], self.evaluate(e[2]))
        return self.binary(e)

    @staticmethod
    def unary(sign, value):
        if sign == "!" and isinstance(value, bool):
            return not value
        if sign == "~" and isinstance(value, Bits):
            return Bits(value.value ^ (1 << value.width) - 1, value.width)
        if sign == "-" and isinstance(value, int):
            return -value
        raise P4Error(f"{sign}{value}")

    def binary(self, e):
        sign, left = e[0], self.evaluate(e[1])
        if sign in ("&&", "||"):
            if isinstance(left, bool) and left == (sign == "||"):
                return left
            right = self.evaluate(e[2])
            if not isinstance(left, bool) or not isinstance(right, bool):
                raise P4Error(f"{sign} of {left} and {right}")
            return right
        right = self.evaluate(e[2])
        if sign == "++":
            return Bits(left.value << right.width | right.value, left.width + right.width)
        if sign in ("<<", ">>") and isinstance(left, Bits):
            shift = number_of(right)
            value = left.value << shift if sign == "<<" else left.value >> shift
            return Bits(value & (1 << left.width) - 1, left.width)
        width = self.common_width(e, left, right)
        a, b = number_of(left), number_of(right)
        if sign in COMPARISONS:
            return COMPARISONS[sign](a, b)
        if width is None and sign in ("&", "|", "^"):
            raise P4Error(f"{sign} of numbers without a width")
        value = ARITHMETIC[sign](a, b)
        return value if width is None else Bits(value & (1 << width) - 1, width)

    @staticmethod
    def common_width(e, left, right):
        if isinstance(left, str) or isinstance(right, str):
            return None
        if isinstance(left, bool) != isinstance(right, bool):
            raise P4Error(f"{e[0]} of {left} and {right}")
        widths = {value.width for value in (left, right) if isinstance(value, Bits)}
        if len(widths) > 1:
            raise P4Error(f"{e[0]} of bit<{left.width}> and bit<{right.width}>: {e}")
        width = widths.pop() if widths else None
        for value in (left, right):
            if width is not None and not isinstance(value, Bits):
                as_bits(value, width, e[0])
        return width

    def name(self, name):
        if name in self.names:
            if self.names[name] is None:
                raise P4Error(f"{name} is read before it is set")
            return self.names[name]
        if name in self.instance.parts:
            return self.instance.parts[name]
        raise P4Error(f"unknown name {name}")

    def field(self, e):
        if e[1] == ("name", "error"):
            return e[2]
        value = self.evaluate(e[1])
        if isinstance(value, dict):
            return value[e[2]]
        if isinstance(value, Stack):
            if e[2] == "next":
                value.used += 1
                return value.elements[value.used - 1]
            if e[2] == "lastIndex":
                return Bits(value.used - 1, 32)
        return value.get(e[2])

    # --- Calls -----------------------------------------------------------------------------------------------------

    def call(self, e):
        function, arguments = e[1], e[2]
        if function[0] == "name":
            return self.function(function[1], arguments)
        if function[1][0] == "name" and function[1][1] not in self.names and function[1][1] not in self.instance.parts:
            raise P4Error(f"unknown name {function[1][1]}")
        target, method = self.evaluate(function[1]), function[2]
        if isinstance(target, Record):
            return self.header_method(target, method)
        if isinstance(target, Stack) and method == "pop_front":
            count = number_of(self.evaluate(arguments[0]))
            assert count == len(target.elements)
            for element in target.elements:
                element.valid = False
            target.used = 0
            return None
        if isinstance(target, Register):
            return self.register_method(target, method, arguments)
        if isinstance(target, collections.Counter) and method == "count":
            target[number_of(self.evaluate(arguments[0]))] += 1
            return None
        if isinstance(target, (PacketIn, PacketOut)):
            return getattr(target, method)(self.evaluate(arguments[0]))
        if isinstance(target, Instance) and method == "apply":
            return self.apply_control(target, arguments)
        if method == "apply":
            return {"hit": self.look_up(target)}
        raise P4Error(f"unknown method {method}")

    def apply_control(self, control, arguments):
        run = type(self)(self.machine, control, [self.evaluate(argument) for argument in arguments])
        run.apply()
        for (kind, name, direction), argument in zip(control.control.parameters, arguments, strict=True):
            if kind[0] != "name" and direction in ("out", "inout"):
                self.assign(argument, run.names[name])

    @staticmethod
    def header_method(header, method):
        if method == "isValid":
            return header.valid
        header.valid = {"setValid": True, "setInvalid": False}[method]
        return None

    def register_method(self, register, method, arguments):
        index_at = {"read": 1, "write": 0}[method]
        index = self.evaluate(arguments[index_at])
        as_bits(index, 32, "register index")
        register.access(method, self.machine.passes, number_of(index))
        if method == "write":
            register.values[number_of(index)] = self.evaluate(arguments[1])
            return
        value = register.values[number_of(index)]
        kind = self.kinds[arguments[0][1]]
        self.assign(arguments[0], as_bits(value, kind[1], "register"))

    def function(self, name, arguments):
        control = self.instance.control
        if name in control.actions:
            return self.action(name, [self.evaluate(argument) for argument in arguments])
        if name == "mark_to_drop":
            record = self.evaluate(arguments[0])
            record.set("egress_spec", DROPPED)
            return record.set("mcast_grp", 0)
        if name == "recirculate_preserving_field_list":
            self.recirculates = True
            return None
        raise P4Error(f"unknown function {name}")

    def action(self, name, arguments):
        if name == "NoAction":
            return
        parameters, body = self.instance.control.actions[name]
        for (kind, parameter, _), value in zip(parameters, arguments, strict=True):
            self.kinds[parameter] = kind
            self.assign(("name", parameter), value)
        self.execute(body)

    def look_up(self, table):
        values = [self.evaluate(key) for key, _ in table.keys]
        for keysets, action, arguments in table.constants:
            if all(matches(k, v, self.evaluate) for k, v in zip(keysets, values, strict=True)):
                self.action(action, [self.evaluate(argument) for argument in arguments])
                return True
        found = table.entries.get(tuple(number_of(value) for value in values))
        action, arguments = found or (table.default[0], [self.evaluate(a) for a in table.default[1]])
        if action not in table.actions:
            raise P4Error(f"{action} is not an action of the table")
        self.action(action, arguments)
        return found is not None
