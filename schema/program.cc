#include "schema/program.h"

#include <algorithm>
#include <array>

namespace pp {
namespace {

constexpr KindInfo kKinds[] = {
#define PP_KIND(number, name, text, kind_class, meaning) \
  {Kind::k##name, text, KindClass::k##kind_class, meaning},
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning)
#include "schema/ops.def"
};

// The cells of a row are lists without commas; each element brings its own.
#define F(field) Field::k##field,
#define V(kind, offset) Operand{Kind::k##kind, offset},
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning) \
  constexpr auto kFields##name = std::to_array<Field>({fields Field::kStage}); \
  constexpr auto kReads##name = std::to_array<Operand>({reads Operand{}});     \
  constexpr auto kWrites##name = std::to_array<Operand>({writes Operand{}});
#include "schema/ops.def"
#undef F
#undef V

// Each array above ends with one extra element, because an array must not be empty.
template <typename Array>
constexpr auto WithoutLast(const Array& array) {
  return std::span(array.data(), array.size() - 1);
}

constexpr OpInfo kOps[] = {
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning) \
  {Op::k##name,                                                                \
   text,                                                                       \
   Lane::k##lane,                                                              \
   WithoutLast(kFields##name),                                                 \
   WithoutLast(kReads##name),                                                  \
   WithoutLast(kWrites##name),                                                 \
   Kind::k##keeps,                                                             \
   meaning},
#include "schema/ops.def"
};

// number -> row, or -1.
template <typename Rows, typename Number>
constexpr std::array<int8_t, 256> ByNumber(const Rows& rows, Number number) {
  std::array<int8_t, 256> index{};
  index.fill(-1);
  for (size_t i = 0; i < std::size(rows); ++i) index[number(rows[i])] = static_cast<int8_t>(i);
  return index;
}
constexpr auto kKindRow =
    ByNumber(kKinds, [](const KindInfo& row) { return static_cast<int>(row.kind); });
constexpr auto kOpRow = ByNumber(kOps, [](const OpInfo& row) { return static_cast<int>(row.op); });

}  // namespace

bool OpInfo::Has(Field field) const {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

std::span<const KindInfo> Kinds() { return kKinds; }
std::span<const OpInfo> Ops() { return kOps; }
const KindInfo& Info(Kind kind) { return kKinds[kKindRow[static_cast<int>(kind)]]; }
const OpInfo& Info(Op op) { return kOps[kOpRow[static_cast<int>(op)]]; }

const KindInfo* FindKind(std::string_view text) {
  for (const KindInfo& row : kKinds)
    if (row.text == text) return &row;
  return nullptr;
}

const OpInfo* FindOp(std::string_view text) {
  for (const OpInfo& row : kOps)
    if (row.text == text) return &row;
  return nullptr;
}

const KindInfo* FindKind(int number) {
  const bool known = number >= 0 && number < 256 && kKindRow[number] >= 0;
  return known ? &kKinds[kKindRow[number]] : nullptr;
}

const OpInfo* FindOp(int number) {
  const bool known = number >= 0 && number < 256 && kOpRow[number] >= 0;
  return known ? &kOps[kOpRow[number]] : nullptr;
}

bool IsMessage(const Instruction& instruction) {
  const Lane lane = Info(instruction.op).lane;
  return lane == Lane::kSend || lane == Lane::kRecv;
}

int ActivationChange(Op op) {
  if (op == Op::kForward || op == Op::kRecompute) return 1;
  return op == Op::kBackward || op == Op::kBackwardWeight ? -1 : 0;
}

std::vector<bool> FirstHalves(std::span<const Instruction> list) {
  std::vector<bool> first(list.size());
  for (size_t i = 0; i < list.size(); ++i) first[i] = list[i].overlap && (i == 0 || !first[i - 1]);
  return first;
}

bool CanWaitFor(Kind kind) {
  return kind == Kind::kAct || kind == Kind::kGrad || kind == Kind::kWgrad || kind == Kind::kTied ||
         kind == Kind::kNorm || kind == Kind::kWeights;
}

bool HasField(const Instruction& instruction, Field field) {
  if (instruction.op != Op::kWait || field == Field::kValue) {
    return Info(instruction.op).Has(field);
  }
  const Kind kind = instruction.value;
  const bool message = kind == Kind::kAct || kind == Kind::kGrad;
  const bool bucket = kind == Kind::kWgrad || kind == Kind::kWeights;
  switch (field) {
    case Field::kStage:
      return message || bucket;
    case Field::kMicro:
    case Field::kSent:
      return message;
    case Field::kBucket:
      return bucket;
    case Field::kPipe:
      return bucket;
    case Field::kPeer:
    case Field::kVersion:
    case Field::kValue:
    case Field::kOverlap:
      return false;
  }
  return false;
}

Value Resolve(Operand operand, const Instruction& instruction, int stages) {
  Value value{operand.kind, instruction.stage + operand.offset, instruction.micro};
  const int last = stages - 1;
  switch (operand.kind) {
    case Kind::kAct:
      if (value.stage < 0) return {Kind::kTokens, 0, value.micro};
      if (value.stage == last) return {Kind::kLoss, last, value.micro};
      return value;
    case Kind::kGrad:
      return value.stage < 0 || value.stage == last ? Value{} : value;
    case Kind::kTokens:
      return value.stage == 0 ? value : Value{};
    case Kind::kTargets:
      return value.stage == last ? value : Value{};
    default:
      return value;
  }
}

Program Program::Head() const {
  return {.scheme = scheme,
          .passes = passes,
          .p2p = p2p,
          .devices = devices,
          .stages = stages,
          .microbatches = microbatches,
          .pipes = pipes,
          .pipe_of = pipe_of,
          .replicas = replicas,
          .zero = zero,
          .clip = clip,
          .job = job,
          .evaluates = evaluates};
}

bool Program::MakesVersions() const {
  return std::any_of(lists.begin(), lists.end(), [](const DeviceList& list) {
    return std::any_of(list.body.begin(), list.body.end(),
                       [](const Instruction& i) { return i.op == Op::kStep && i.version >= 0; });
  });
}

std::vector<int32_t> Program::StagesOf(int device) const {
  std::vector<int32_t> held;
  for (const Pipe& pipe : pipes)
    for (int s = 0; s < stages; ++s)
      if (pipe.device_of[s] == device) held.push_back(s);
  std::sort(held.begin(), held.end());
  held.erase(std::unique(held.begin(), held.end()), held.end());
  return held;
}

std::vector<int32_t> Program::PipesOf(int stage, int device) const {
  std::vector<int32_t> found;
  for (size_t pipe = 0; pipe < pipes.size(); ++pipe)
    if (pipes[pipe].device_of[stage] == device) found.push_back(static_cast<int32_t>(pipe));
  return found;
}

std::vector<double> Program::Shares() const {
  const std::vector<int32_t>& device_of = pipes.front().device_of;
  std::vector<int> held(devices, 0);
  for (int32_t device : device_of) ++held[device];
  std::vector<double> shares;
  for (int32_t device : device_of) shares.push_back(1.0 / held[device]);
  return shares;
}

int Program::StagesPerDevice() const { return std::max(1, stages / std::max(1, devices)); }

}  // namespace pp
