// The instruction set in C++ (the rows are in ops.def), one instruction, and the table of its
// fields: text form, plan files, checks, JSON and random tests follow from that table.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace pp {

enum class Kind : uint8_t {
  kNone = 0,
#define PP_KIND(number, name, text, kind_class, meaning) k##name = number,
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)
#include "schema/ops.def"
};
enum class KindClass : uint8_t { kValue, kAccumulator, kState, kEvent };

enum class Op : uint8_t {
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)                                                               \
  k##name = number,
#include "schema/ops.def"
};

// Above the number of each kind, of each kind of a value, and of each op.
inline constexpr int kKindNumbers = 1 + std::max({0
#define PP_KIND(number, name, text, kind_class, meaning) , number
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)
#include "schema/ops.def"
                                        });
inline constexpr int kValueNumbers = 1 + std::max({0
#define PP_KIND(number, name, text, kind_class, meaning) \
  , KindClass::k##kind_class == KindClass::kValue ? number : 0
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)
#include "schema/ops.def"
                                         });
inline constexpr int kOpNumbers = 1 + std::max({0
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)                                                               \
  , number
#include "schema/ops.def"
                                      });

// A device runs its lanes concurrently, each in list order. Send and Recv stand for one lane per
// direction and peer.
enum class Lane : uint8_t { kCompute, kSend, kRecv, kReduce };

// What an instruction may have; the table of them follows Instruction.
enum class Field : uint8_t {
  kValue,
  kStage,
  kMicro,
  kBucket,
  kPipe,
  kPeer,
  kVersion,
  kSent,
  kOverlap
};

// A set of fields.
class FieldSet {
 public:
  constexpr FieldSet() = default;
  constexpr FieldSet(Field field) : bits_(1u << static_cast<int>(field)) {}
  constexpr bool Has(Field field) const { return (bits_ >> static_cast<int>(field) & 1) != 0; }
  constexpr FieldSet operator|(FieldSet other) const { return FieldSet(bits_ | other.bits_); }
  constexpr FieldSet Without(FieldSet other) const { return FieldSet(bits_ & ~other.bits_); }

 private:
  constexpr explicit FieldSet(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

struct KindInfo {
  Kind kind;
  std::string_view text;
  KindClass kind_class;
  std::string_view meaning;
};

// A value of stage `instruction.stage + offset`.
struct Operand {
  Kind kind;
  int offset;
};

// What is done with a micro-batch at a stage, of which a checkpointed forward and half a backward
// are other ways.
enum class Part : int8_t { kForward, kRecompute, kBackward, kWeight };

struct OpInfo {
  Op op;
  std::string_view text;
  Lane lane;
  FieldSet fields;
  std::span<const Operand> reads;
  std::span<const Operand> writes;
  Kind keeps;
  Kind delivers;  // of a message or a collective: what a WAIT for its end names
  // What it does to the number of full activations alive: +1 from its start (FW, RE), -1 from its
  // end (BW, or BW_weight where the backward is split).
  int alive;
  std::optional<Part> part;
  char letter;  // in a grid, and PyTorch's name; 0: it is in neither
  std::string_view meaning;
};

std::span<const KindInfo> Kinds();
std::span<const OpInfo> Ops();
const KindInfo& Info(Kind kind);
// By an op's number; null if there is none. For Info, which every pass asks of every instruction.
extern const std::array<const OpInfo*, 256> kOpOf;
inline const OpInfo& Info(Op op) { return *kOpOf[static_cast<int>(op)]; }
// By text ("act", "FW") or by the number in a file; null if there is none.
const KindInfo* FindKind(std::string_view text);
const OpInfo* FindOp(std::string_view text);
const KindInfo* FindKind(int number);
const OpInfo* FindOp(int number);

// One instruction. Fields that its op does not have keep their defaults.
struct Instruction {
  Op op = Op::kLoad;
  Kind value = Kind::kNone;  // WAIT: what for
  bool sent = false;         // WAIT: for the end of its send
  bool overlap = false;  // with its neighbour, which has it set too: the two run as one (DualPipe)
  int16_t bucket = -1;
  int16_t pipe = -1;  // only set if there are several
  // Uses weights this many updates older than the newest, or the first ones if there have not been
  // so many updates; only set if a device keeps several versions. STEP: 0, it makes the newest.
  int16_t version = -1;
  int32_t stage = -1;
  int32_t micro = -1;
  int32_t peer = -1;  // the other device
  // Where the values it writes lie in the device's arena, in bytes, in the order of the table's
  // "writes" (without those that have no bytes); a value in two pieces (memory.h) has both; -1
  // before plan-memory.
  int64_t offset[3] = {-1, -1, -1};

  bool operator==(const Instruction&) const = default;
};

// What a program's numbers stay below. Those that are not known have the limit of their type.
struct Limits {
  int32_t stages = INT32_MAX, micros = INT32_MAX, devices = INT32_MAX;
  int32_t pipes = INT16_MAX, buckets = INT16_MAX, versions = INT16_MAX;
};

// Whether an instruction that has a field in its row of ops.def may leave it out.
enum class Presence : uint8_t { kAlways, kMaybe };

// A row of the table of fields. A field is a number (not set: -1), a flag, or the kind of value
// that a WAIT waits for.
template <typename T>
struct FieldInfo {
  Field field;
  std::string_view name;  // in JSON, in plan files and in errors
  T Instruction::*member;
  int column;             // of table Instructions in program.fbs
  std::string_view text;  // before a number ("m" in "m3"), or for a flag that is set
  Presence presence = Presence::kMaybe;
  int32_t Limits::*limit = nullptr;  // of a number
};
// clang 14 needs to be told.
template <typename T>
FieldInfo(Field, std::string_view, T Instruction::*, int, std::string_view, Presence = {},
          int32_t Limits::* = {}) -> FieldInfo<T>;

// To add a field: its name in Field, its member, its row here, its column in program.fbs, and the
// rows of ops.def which have it. The order is that of the text form, where a WAIT's value decides
// which fields follow.
inline constexpr std::tuple kFields{
    FieldInfo{Field::kValue, "value", &Instruction::value, 4, "", Presence::kAlways},
    FieldInfo{Field::kStage, "stage", &Instruction::stage, 1, "s", Presence::kAlways,
              &Limits::stages},
    FieldInfo{Field::kMicro, "micro", &Instruction::micro, 2, "m", Presence::kAlways,
              &Limits::micros},
    FieldInfo{Field::kBucket, "bucket", &Instruction::bucket, 6, "b", Presence::kAlways,
              &Limits::buckets},
    FieldInfo{Field::kPipe, "pipe", &Instruction::pipe, 7, "p", Presence::kMaybe, &Limits::pipes},
    FieldInfo{Field::kPeer, "peer", &Instruction::peer, 3, "d", Presence::kAlways,
              &Limits::devices},
    FieldInfo{Field::kVersion, "version", &Instruction::version, 10, "v", Presence::kMaybe,
              &Limits::versions},
    FieldInfo{Field::kSent, "sent", &Instruction::sent, 5, "sent"},
    FieldInfo{Field::kOverlap, "overlap", &Instruction::overlap, 11, "overlap"},
};
template <typename T>
inline constexpr bool IsNumber = std::is_integral_v<T> && !std::is_same_v<T, bool>;
inline constexpr int kFieldCount = std::tuple_size_v<decltype(kFields)>;
// The columns of `offset`, which is no op's field: plan-memory gives it to all that write.
inline constexpr int kOffsetColumns[] = {8, 9, 12};

// Calls visit(const FieldInfo<T>&) for each field.
template <typename Visit>
constexpr void ForEachField(Visit visit) {
  std::apply([&](const auto&... info) { (visit(info), ...); }, kFields);
}
// The same until visit returns false. Whether it never did.
template <typename Visit>
constexpr bool AllFields(Visit visit) {
  return std::apply([&](const auto&... info) { return (visit(info) && ...); }, kFields);
}
// Whether an instruction has the field set.
template <typename T>
bool IsSet(const Instruction& i, const FieldInfo<T>& info) {
  return i.*info.member != Instruction{}.*info.member;
}

// SEND or RECV.
inline bool IsMessage(const Instruction& instruction) {
  const Lane lane = Info(instruction.op).lane;
  return lane == Lane::kSend || lane == Lane::kRecv;
}
// Whether each instruction is the first of two that overlap: pairs are taken from the left.
std::vector<bool> FirstHalves(std::span<const Instruction> list);
inline int ActivationChange(Op op) { return Info(op).alive; }
// Of a message: kAct or kGrad.
inline Kind KindOfMessage(Op op) { return Info(op).delivers; }
// What a WAIT can wait for: what a message or a collective delivers.
bool CanWaitFor(Kind kind);
// "act, grad, wgrad, tied, norm or weights".
std::string KindsToWaitFor();
// The fields of the instruction's row; for a WAIT its value and those of the message or collective
// that it waits for, without the peer, and 'sent' if that is a message. Op and value may be
// unknown.
FieldSet FieldsOf(const Instruction& instruction);
inline bool HasField(const Instruction& instruction, Field field) {
  return FieldsOf(instruction).Has(field);
}

// A value's name on one device.
struct Value {
  Kind kind = Kind::kNone;
  int32_t stage = -1;
  int32_t micro = -1;
  bool operator==(const Value&) const = default;
};

// The value that an operand of `instruction` refers to in a model of `stages` stages, with the
// names changed at the ends; kind kNone if it does not exist.
Value Resolve(Operand operand, const Instruction& instruction, int stages);

}  // namespace pp
