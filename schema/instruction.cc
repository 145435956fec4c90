#include "schema/instruction.h"

#include <algorithm>
#include <array>

namespace pp {
namespace {

constexpr KindInfo kKinds[] = {
#define PP_KIND(number, name, text, kind_class, meaning) \
  {Kind::k##name, text, KindClass::k##kind_class, meaning},
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)
#include "schema/ops.def"
};

// The cells of a row are lists without commas; each element brings its own.
#define F(field) | Field::k##field
#define V(kind, offset) Operand{Kind::k##kind, offset},
#define P(part) Part::k##part
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)                                                               \
  constexpr auto kReads##name = std::to_array<Operand>({reads Operand{}});                   \
  constexpr auto kWrites##name = std::to_array<Operand>({writes Operand{}});
#include "schema/ops.def"
#undef V

// Each array above ends with one extra element, because an array must not be empty.
template <typename Array>
constexpr auto WithoutLast(const Array& array) {
  return std::span(array.data(), array.size() - 1);
}

constexpr OpInfo kOps[] = {
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, delivers, alive, part, \
              letter, meaning)                                                               \
  {Op::k##name,                                                                              \
   text,                                                                                     \
   Lane::k##lane,                                                                            \
   FieldSet() fields,                                                                        \
   WithoutLast(kReads##name),                                                                \
   WithoutLast(kWrites##name),                                                               \
   Kind::k##keeps,                                                                           \
   Kind::k##delivers,                                                                        \
   alive,                                                                                    \
   std::optional<Part>{part},                                                                \
   letter,                                                                                   \
   meaning},
#include "schema/ops.def"
};
#undef F
#undef P

// number -> row, or null.
template <typename Row, size_t kRows, typename Number>
constexpr std::array<const Row*, 256> ByNumber(const Row (&rows)[kRows], Number number) {
  std::array<const Row*, 256> found{};
  for (const Row& row : rows) found[static_cast<int>(row.*number)] = &row;
  return found;
}
constexpr auto kKindOf = ByNumber(kKinds, &KindInfo::kind);

// The fields by an op's number.
constexpr std::array<FieldSet, 256> kFieldsOfOp = [] {
  std::array<FieldSet, 256> sets{};
  for (const OpInfo& row : kOps) sets[static_cast<int>(row.op)] = row.fields;
  return sets;
}();
// Of a WAIT by the number of the kind that it waits for.
constexpr std::array<FieldSet, 256> kFieldsOfWait = [] {
  std::array<FieldSet, 256> sets{};
  for (const OpInfo& row : kOps) {
    if (row.delivers == Kind::kNone) continue;
    const bool message = row.lane == Lane::kSend || row.lane == Lane::kRecv;
    sets[static_cast<int>(row.delivers)] = row.fields.Without(Field::kPeer) | Field::kValue |
                                           (message ? FieldSet(Field::kSent) : FieldSet());
  }
  return sets;
}();

}  // namespace

std::span<const KindInfo> Kinds() { return kKinds; }
std::span<const OpInfo> Ops() { return kOps; }
const KindInfo& Info(Kind kind) { return *kKindOf[static_cast<int>(kind)]; }
constexpr std::array<const OpInfo*, 256> kOpOf = ByNumber(kOps, &OpInfo::op);

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
  return number >= 0 && number < 256 ? kKindOf[number] : nullptr;
}

const OpInfo* FindOp(int number) { return number >= 0 && number < 256 ? kOpOf[number] : nullptr; }

std::vector<bool> FirstHalves(std::span<const Instruction> list) {
  std::vector<bool> first(list.size());
  for (size_t i = 0; i < list.size(); ++i) first[i] = list[i].overlap && (i == 0 || !first[i - 1]);
  return first;
}

bool CanWaitFor(Kind kind) { return kFieldsOfWait[static_cast<int>(kind)].Has(Field::kValue); }

std::string KindsToWaitFor() {
  std::string text;
  const KindInfo* last = nullptr;
  for (const KindInfo& kind : kKinds) {
    if (!CanWaitFor(kind.kind)) continue;
    if (last != nullptr) text.append(text.empty() ? "" : ", ").append(last->text);
    last = &kind;
  }
  return text.append(" or ").append(last->text);
}

FieldSet FieldsOf(const Instruction& instruction) {
  if (instruction.op != Op::kWait) return kFieldsOfOp[static_cast<int>(instruction.op)];
  return kFieldsOfWait[static_cast<int>(instruction.value)] | Field::kValue;
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

}  // namespace pp
