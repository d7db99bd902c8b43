"""The machine under p4_interpreter for TNA: ingress and egress of one pipe of a Tofino, with its traffic manager.

It refuses what the chip cannot do, as far as public documents say it:

- A register is accessed once per pass, by one of at most four actions. An action has at most two comparisons and two operands
  from the packet, changes one value, or two of the same width, of at most 32 bits, and returns one word.
- A stage has four registers. An access needs no value that is made in the register's own stage or a later one: a look-up or an
  assignment takes the stage in which all that it depends on is there, conditions included, and what it makes is there in the
  next one. Booleans stand for their expressions. Twelve stages are all that Tofino 1 has.
- There is no multiplication.
"""

import collections

from p4_interpreter import Bits, P4Error, as_bits, number_of
from p4_machine import MOST_PASSES, Instance, Machine, PacketIn, PacketOut, Record, Run

STAGES = 12
REGISTERS_PER_STAGE = 4
ACTIONS_PER_REGISTER = 4
NOWHERE = 511  # the port of a packet that has been given none
PARTIAL_HEADER = 2  # PARSER_ERROR_PARTIAL_HDR
INTRINSIC = {
    "ingress_intrinsic_metadata_t": {"ingress_port": 9},
    "ingress_intrinsic_metadata_from_parser_t": {"parser_err": 16},
    "ingress_intrinsic_metadata_for_deparser_t": {"drop_ctl": 3},
    "ingress_intrinsic_metadata_for_tm_t": {"ucast_egress_port": 9, "mcast_grp_a": 16},
    "egress_intrinsic_metadata_t": {"egress_port": 9, "egress_rid": 16},
    "egress_intrinsic_metadata_from_parser_t": {},
    "egress_intrinsic_metadata_for_deparser_t": {"drop_ctl": 3},
    "egress_intrinsic_metadata_for_output_port_t": {},
}


def intrinsic(kind, **values):
    record = Record(INTRINSIC[kind])
    record.values = {name: Bits(0, width) for name, width in record.widths.items()}
    for name, value in values.items():
        record.set(name, value)
    return record


class Frame(PacketIn):
    """Intrinsic metadata is there already: it takes no bytes."""

    def extract(self, header):
        if header.is_header:
            super().extract(header)


class StatefulRegister:
    def __init__(self, name, kind, size, initial, stage, types):
        if kind[0] == "bit":
            self.widths = {"": kind[1]}
        else:
            self.widths = {name: field[1] for field, name, _ in types[kind[1]][1]}
        if len(self.widths) > 2 or len(set(self.widths.values())) != 1 or max(self.widths.values()) > 32:
            raise P4Error(f"register {name}: values of {self.widths}")
        if stage is None or not 0 <= stage < STAGES:
            raise P4Error(f"register {name}: stage {stage}")
        initial = initial if isinstance(initial, list) else [initial]
        first = tuple(as_bits(value, w) for value, w in zip(initial, self.widths.values(), strict=True))
        self.name, self.stage, self.values, self.accessed, self.actions = name, stage, [first] * size, -1, 0

    @property
    def bits(self):
        return sum(self.widths.values()) * len(self.values)


class RegisterAction:
    def __init__(self, register, parameters, body):
        self.register, self.parameters, self.body = register, parameters, body
        register.actions += 1
        if register.actions > ACTIONS_PER_REGISTER:
            raise P4Error(f"register {register.name}: more than {ACTIONS_PER_REGISTER} actions")
        own = {name for _, name, _ in parameters}
        comparisons, operands = set(), set()
        self.walk(body, own, comparisons, operands)
        if len(parameters) > 2 or len(comparisons) > 2 or len(operands) > 2:
            raise P4Error(f"register {register.name}: an action with {comparisons} and {operands}")

    def walk(self, tree, own, comparisons, operands):
        kind = tree[0]
        if kind == "constant":
            return
        if kind in ("name", "field", "slice", "cast"):
            at = tree
            while at[0] in ("field", "slice", "index", "cast"):
                at = at[2] if at[0] == "cast" else at[1]
            if at[1] not in own:
                operands.add(str(tree))
            return
        if kind in ("*", "/", "<<", ">>", "++", "?"):
            raise P4Error(f"{kind} in an action of a register")
        if kind in ("==", "!=", "<", ">", "<=", ">="):
            comparisons.add(str(tree))
        if kind == "call":
            if tree[1] not in (("name", "max"), ("name", "min")):
                raise P4Error(f"{tree[1]} in an action of a register")
            parts = tree[2]
        else:
            parts = tree[1] if kind == "block" else [part for part in tree[1:] if isinstance(part, tuple)]
        for part in parts:
            self.walk(part, own, comparisons, operands)


class Checksum:
    """Of the Internet."""

    def __init__(self):
        self.total = 0

    def add(self, header):
        value = bits = 0
        for name, width in header.widths.items():
            value, bits = value << width | header.get(name).value, bits + width
        self.add_bytes(value.to_bytes(bits // 8, "big"))

    def add_bytes(self, data):
        for at in range(0, len(data), 2):
            self.total += int.from_bytes(data[at : at + 2], "big")
        while self.total >> 16:
            self.total = (self.total & 0xFFFF) + (self.total >> 16)

    def verify(self):
        """True: wrong, as programs for Tofino take it."""
        wrong, self.total = self.total != 0xFFFF, 0
        return wrong

    def update(self, fields):
        value = bits = 0
        for field in fields:
            value, bits = value << field.width | field.value, bits + field.width
        self.total = 0
        self.add_bytes(value.to_bytes(bits // 8, "big"))
        return Bits(~self.total & 0xFFFF, 16)


class ParserCounter:
    def __init__(self):
        self.value = 0

    def set(self, value):
        self.value = number_of(value)

    def is_zero(self):
        return self.value == 0

    def decrement(self, by):
        self.value -= number_of(by)


class TnaMachine(Machine):
    def __init__(self, program, recirculation_port):
        self.recirculation_port = recirculation_port
        self.by_stage = collections.defaultdict(list)
        self.inputs = self.context = 0  # stages: what the expression and the conditions around it depend on
        self.made_by_register = None
        self.stages = 0  # that any packet has taken
        self.recirculations = 0  # of the last packet
        super().__init__(program)

    def instance(self, name, stage=None):
        control = self.program.controls[name]
        parts = dict(control.tables)
        self.tables.update(control.tables)
        for part, kind, arguments in control.instances:
            own_stage = control.stages[part] if control.stages[part] is not None else stage
            if kind == "Register":
                parts[part] = self.register(part, control.types[part][0], arguments, own_stage)
            elif kind == "RegisterAction":
                parts[part] = RegisterAction(parts[arguments[0][1]], *control.methods[part])
            elif kind == "Counter":
                parts[part] = self.counters[part] = collections.Counter()
            elif kind in ("Checksum", "ParserCounter"):
                parts[part] = {"Checksum": Checksum, "ParserCounter": ParserCounter}[kind]()
            else:
                parts[part] = self.instance(kind, own_stage)
        return Instance(control, parts)

    def register(self, name, kind, arguments, stage):
        initial = arguments[1]
        initial = [each[1] for each in initial[1]] if initial[0] == "list" else initial[1]
        register = StatefulRegister(name, kind, arguments[0][1], initial, stage, self.program.types)
        self.registers.setdefault(name, []).append(register)
        self.by_stage[stage].append(register)
        if len(self.by_stage[stage]) > REGISTERS_PER_STAGE:
            raise P4Error(f"more than {REGISTERS_PER_STAGE} registers in stage {stage}")
        return register

    # --- One packet ------------------------------------------------------------------------------------------------

    def receive(self, port, frame, lost=None):
        """As Machine.receive(). `lost`: the number of the recirculation, from 1, that the traffic manager drops."""
        waiting, sent, first = collections.deque([(port, frame)]), [], self.passes
        self.recirculations = 0
        while waiting:
            if self.passes - first >= MOST_PASSES:
                raise P4Error("a packet does not leave the switch")
            for copy_port, out in self.one_pass(*waiting.popleft()):
                if copy_port != self.recirculation_port:
                    sent.append((copy_port, out))
                    continue
                self.recirculations += 1
                if self.recirculations != lost:
                    waiting.append((copy_port, out))
        return sent

    def one_pass(self, port, frame):
        self.passes += 1
        parse, ingress, deparse, *_ = self.program.main
        h, m = self.make("headers_t"), self.make("metadata_t")
        i = intrinsic("ingress_intrinsic_metadata_t", ingress_port=port)
        from_parser = intrinsic("ingress_intrinsic_metadata_from_parser_t")
        d = intrinsic("ingress_intrinsic_metadata_for_deparser_t")
        tm = intrinsic("ingress_intrinsic_metadata_for_tm_t", ucast_egress_port=NOWHERE)
        packet = Frame(frame)
        try:
            TnaRun(self, self.instances[parse], [packet, h, m, i]).parse()
        except EOFError:
            from_parser.set("parser_err", PARTIAL_HEADER)
        self.stage_free(h, m)
        TnaRun(self, self.instances[ingress], [h, m, i, from_parser, d, tm]).apply()
        out = PacketOut()
        TnaRun(self, self.instances[deparse], [out, h, m, d]).apply()
        if d.get("drop_ctl").value:
            return []
        data, group = bytes(out.data) + packet.rest(), tm.get("mcast_grp_a").value
        to_port = tm.get("ucast_egress_port").value
        copies = self.groups.get(group, []) if group else [] if to_port == NOWHERE else [(0, to_port)]
        left = [(copy_port, self.egress(copy_port, rid, data)) for rid, copy_port in copies]
        return [(copy_port, copy) for copy_port, copy in left if copy is not None]

    def egress(self, port, replication_id, data):
        *_, parse, egress, deparse = self.program.main
        h, m = self.make("headers_t"), self.make("metadata_t")
        e = intrinsic("egress_intrinsic_metadata_t", egress_port=port, egress_rid=replication_id)
        from_parser = intrinsic("egress_intrinsic_metadata_from_parser_t")
        d = intrinsic("egress_intrinsic_metadata_for_deparser_t")
        oport = intrinsic("egress_intrinsic_metadata_for_output_port_t")
        packet, out = Frame(data), PacketOut()
        TnaRun(self, self.instances[parse], [packet, h, m, e]).parse()
        self.stage_free(h, m)
        TnaRun(self, self.instances[egress], [h, m, e, from_parser, d, oport]).apply()
        self.stage_free(h, m)
        TnaRun(self, self.instances[deparse], [out, h, m, d]).apply()
        return None if d.get("drop_ctl").value else bytes(out.data) + packet.rest()

    def stage_free(self, *records):
        """What parsers have made, and deparsers take, has no stage."""
        self.inputs = self.context = 0
        for record in records:
            record.ready = {}
            for part in record.parts.values():
                self.stage_free(*getattr(part, "elements", [part]))

    def taken(self, stage):
        if stage >= STAGES:
            raise P4Error(f"stage {stage}")
        self.stages = max(self.stages, stage + 1)
        return stage


class TnaRun(Run):
    def __init__(self, machine, instance, arguments):
        super().__init__(machine, instance, arguments)
        self.ready = {}  # variables and parameters: the stage from which on they are there
        self.in_register = False

    def note(self, stage):
        self.machine.inputs = max(self.machine.inputs, stage)

    def inputs_of(self, evaluate):
        """The value, and the stage from which on all is there that it depends on."""
        before, self.machine.inputs = self.machine.inputs, 0
        value = evaluate()
        needed, self.machine.inputs = self.machine.inputs, before
        return value, needed

    def under(self, stage, execute):
        """Runs what a condition or look-up of this stage guards."""
        before, self.machine.context = self.machine.context, max(self.machine.context, stage)
        result = execute()
        self.machine.context = before
        return result

    def execute(self, statement):
        kind = statement[0]
        if kind == "if":
            condition, needed = self.inputs_of(lambda: self.evaluate(statement[1]))
            if not isinstance(condition, bool):
                raise P4Error(f"condition is not a bool: {statement[1]}")
            branch = statement[2] if condition else statement[3]
            if branch:
                self.under(needed, lambda: self.execute(branch))
        elif kind in ("=", "variable"):
            self.machine.made_by_register = None
            self.inputs_of(lambda: super(TnaRun, self).execute(statement))
        else:
            super().execute(statement)

    def assign(self, target, value):
        machine, made_by = self.machine, self.machine.made_by_register
        needed = max(machine.inputs, machine.context)
        super().assign(target, value)
        if self.in_register:
            return None
        if made_by is not None:
            return self.set_ready(target, made_by + 1)
        return self.set_ready(target, needed if isinstance(value, bool) else machine.taken(needed) + 1)

    def set_ready(self, target, stage):
        if target[0] == "name":
            self.ready[target[1]] = stage
        else:
            record = self.inputs_of(lambda: self.evaluate(target[1]))[0]
            if not hasattr(record, "ready"):
                record.ready = {}
            record.ready[target[2]] = stage

    def evaluate(self, e):
        if e[0] == "list":
            return [self.evaluate(each) for each in e[1]]
        value = super().evaluate(e)
        if e[0] in ("*", "/") and isinstance(value, Bits):
            raise P4Error(f"no {e[0]} on a switch")
        return value

    def name(self, name):
        if name == "PORT_METADATA_SIZE":
            return 0
        self.note(self.ready.get(name, 0))
        return super().name(name)

    def field(self, e):
        value = super().field(e)
        if e[1] != ("name", "error"):
            target = self.inputs_of(lambda: self.evaluate(e[1]))[0] if e[2] != "next" and e[2] != "hit" else None
            self.note(getattr(target, "ready", {}).get(e[2], 0))
        return value

    # --- Calls -----------------------------------------------------------------------------------------------------

    def call(self, e):
        function, arguments = e[1], e[2]
        if function[0] == "field" and function[1][0] == "name" and function[1][1] in self.instance.parts:
            target = self.instance.parts[function[1][1]]
            if isinstance(target, RegisterAction) and function[2] == "execute":
                return self.access(target, arguments)
            if isinstance(target, (Checksum, ParserCounter)):
                return getattr(target, function[2])(*(self.evaluate(argument) for argument in arguments))
        if function[0] == "field" and function[2] == "advance":
            return None
        return super().call(e)

    def access(self, action, arguments):
        machine, register = self.machine, action.register
        if register.accessed == machine.passes:
            raise P4Error(f"second access to register {register.name} in a pass")
        register.accessed = machine.passes
        at, needed = self.inputs_of(lambda: number_of(as_bits(self.evaluate(arguments[0]), 32)))
        if not 0 <= at < len(register.values):
            raise P4Error(f"register {register.name}: index {at}")
        before = dict(self.names), dict(self.kinds)
        (kind, own, _), *out = action.parameters
        if kind[0] == "bit":
            self.kinds[own], self.names[own] = kind, register.values[at][0]
        else:
            record = Record(register.widths)
            record.values = dict(zip(register.widths, register.values[at], strict=True))
            self.kinds.pop(own, None)
            self.names[own] = record
        for out_kind, name, _ in out:
            self.kinds[name], self.names[name] = out_kind, None
        self.in_register = True
        _, body_needs = self.inputs_of(lambda: self.body(action.body))
        self.in_register = False
        value = self.names[own]
        register.values[at] = (value,) if isinstance(value, Bits) else tuple(value.values.values())
        result = self.names[out[0][1]] if out else None
        self.names, self.kinds = before
        needed = max(needed, body_needs, machine.context)
        if needed > register.stage:
            raise P4Error(f"register {register.name} in stage {register.stage} needs what is there in stage {needed}")
        machine.taken(register.stage)
        machine.made_by_register = register.stage
        return result

    def body(self, tree):
        """Of a register's action: conditions are operands as the others are."""
        if tree[0] == "block":
            for each in tree[1]:
                self.body(each)
        elif tree[0] == "if":
            branch = tree[2] if self.evaluate(tree[1]) else tree[3]
            if branch:
                self.body(branch)
        else:
            self.assign(tree[1], self.evaluate(tree[2]))

    def apply_control(self, control, arguments):
        given = [self.inputs_of(lambda argument=argument: self.argument(argument)) for argument in arguments]
        run = TnaRun(self.machine, control, [value for value, _ in given])
        parameters = control.control.parameters
        for (kind, name, _), (_, needed) in zip(parameters, given, strict=True):
            if kind[0] != "name":
                run.ready[name] = needed
        run.apply()
        for (kind, name, direction), argument in zip(parameters, arguments, strict=True):
            if kind[0] != "name" and direction in ("out", "inout"):
                Run.assign(self, argument, run.names[name])
                self.set_ready(argument, run.ready[name])

    def argument(self, e):
        """Variables that are only written may not have a value yet."""
        if e[0] == "name" and e[1] in self.kinds and self.names[e[1]] is None:
            return None
        return self.evaluate(e)

    def function(self, name, arguments):
        if name in ("max", "min"):
            values = [self.evaluate(argument) for argument in arguments]
            if len({value.width for value in values}) != 1:
                raise P4Error(f"{name} of {values}")
            return {"max": max, "min": min}[name](values, key=number_of)
        values = [self.inputs_of(lambda argument=argument: self.evaluate(argument)) for argument in arguments]
        return self.with_ready(name, [value for value, _ in values], [needed for _, needed in values])

    def with_ready(self, name, values, ready):
        if name == "NoAction":
            return
        parameters, body = self.instance.control.actions[name]
        for (kind, parameter, _), value, needed in zip(parameters, values, ready, strict=True):
            self.kinds[parameter] = kind
            Run.assign(self, ("name", parameter), value)
            self.ready[parameter] = needed
        self.execute(body)

    def action(self, name, arguments):
        self.with_ready(name, arguments, [0] * len(arguments))

    def look_up(self, table):
        _, needed = self.inputs_of(lambda: [self.evaluate(key) for key, _ in table.keys])
        stage = self.machine.taken(max(needed, self.machine.context))
        hit, _ = self.inputs_of(lambda: self.under(stage, lambda: super(TnaRun, self).look_up(table)))
        self.note(stage + 1)
        return hit
