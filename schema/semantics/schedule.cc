#include "schema/semantics/schedule.h"

#include <fmt/format.h>

#include <array>
#include <tuple>
#include <vector>

namespace pp {
namespace {

// What is done with a micro-batch at a stage, the first ones as Part numbers them, or with the
// values between it and the next one.
enum Slot {
  kForward = static_cast<int>(Part::kForward),
  kRecompute = static_cast<int>(Part::kRecompute),
  kBackward = static_cast<int>(Part::kBackward),
  kWeight = static_cast<int>(Part::kWeight),
  kSendAct,
  kRecvAct,
  kSendGrad,
  kRecvGrad,
  kSlots
};

Slot SlotOf(Op op) {
  if (const auto part = Info(op).part) return static_cast<Slot>(*part);
  switch (op) {
    case Op::kSendAct:
      return kSendAct;
    case Op::kRecvAct:
      return kRecvAct;
    case Op::kSendGrad:
      return kSendGrad;
    case Op::kRecvGrad:
      return kRecvGrad;
    default:
      return kSlots;
  }
}

class Checker {
 public:
  Checker(const Program& program, const Naming& name)
      : program_(program),
        name_(name),
        index_of_(static_cast<size_t>(program.stages) * program.microbatches) {
    for (auto& parts : index_of_) parts.fill(-1);
  }

  Status Run() {
    for (int d = 0; d < program_.devices; ++d) PP_RETURN_IF_ERROR(Place(d));
    for (int m = 0; m < program_.microbatches; ++m)
      for (int s = 0; s < program_.stages; ++s) PP_RETURN_IF_ERROR(CheckCompute(s, m));
    for (int m = 0; messages_ && m < program_.microbatches; ++m)
      for (int s = 0; s + 1 < program_.stages; ++s) PP_RETURN_IF_ERROR(CheckMessages(s, m));
    return {};
  }

 private:
  // Where a slot has to be; both values that a message may carry here are between two stages.
  int DeviceOf(Slot slot, int stage, int micro) const {
    const bool next = slot == kRecvAct || slot == kSendGrad;
    return program_.DeviceOf(stage + next, micro);
  }
  int32_t& At(Slot slot, int stage, int micro) {
    return index_of_[static_cast<size_t>(stage) * program_.microbatches + micro][slot];
  }
  const Instruction& Found(int device, int32_t index) const {
    return program_.lists[device].body[index];
  }
  // "line 7: 'FW s0 m1'".
  std::string Quote(int device, int32_t index) const {
    return fmt::format("{}: '{}'", name_(device, index), ToText(Found(device, index)));
  }

  Status Place(int device) {
    const auto& list = program_.lists[device].body;
    for (size_t i = 0; i < list.size(); ++i) {
      const Slot slot = SlotOf(list[i].op);
      if (slot == kSlots) continue;
      const auto index = static_cast<int32_t>(i);
      const bool message = slot >= kSendAct;
      messages_ |= message;
      if (message && list[i].stage + 1 == program_.stages)
        return Status::Invalid(Quote(device, index) + " (the last stage's go nowhere)");
      const int right = DeviceOf(slot, list[i].stage, list[i].micro);
      if (right != device)
        return Status::Invalid(fmt::format("{} on device {} (stage {} of its pipe is on device {})",
                                           Quote(device, index), device, list[i].stage, right));
      int32_t& known = At(slot, list[i].stage, list[i].micro);
      if (known >= 0)
        return Status::Invalid(fmt::format("{} after '{}', {} (once)", Quote(device, index),
                                           ToText(Found(device, known)), name_(device, known)));
      known = index;
    }
    return {};
  }

  Status Missing(Op op, Slot slot, int stage, int micro, Slot because) {
    const int device = DeviceOf(slot, stage, micro);
    const int32_t other = At(because, stage, micro);
    const std::string reason =
        other < 0 ? name_(device, kItself) + " has its list"
                  : fmt::format("{} has its {}", name_(DeviceOf(because, stage, micro), other),
                                Info(Found(DeviceOf(because, stage, micro), other).op).text);
    return Status::Invalid(fmt::format("{} s{} m{} is missing on device {} ({})", Info(op).text,
                                       stage, micro, device, reason));
  }

  // Of two on one device.
  Status Order(Slot first, int first_stage, Slot second, int second_stage, int micro) {
    const int32_t a = At(first, first_stage, micro), b = At(second, second_stage, micro);
    if (a < 0 || b < 0 || a < b) return {};
    const int device = DeviceOf(first, first_stage, micro);
    return Status::Invalid(fmt::format("{} comes before '{}', {}", Quote(device, b),
                                       ToText(Found(device, a)), name_(device, a)));
  }

  Status CheckCompute(int s, int m) {
    const auto is = [&](Slot slot, Op op) {
      const int32_t index = At(slot, s, m);
      return index >= 0 && Found(DeviceOf(slot, s, m), index).op == op;
    };
    const auto has = [&](Slot slot) { return At(slot, s, m) >= 0; };
    if (!has(kForward)) return Missing(Op::kForward, kForward, s, m, kBackward);
    if (!has(kBackward))
      return Missing(has(kWeight) ? Op::kBackwardInput : Op::kBackward, kBackward, s, m, kForward);
    if (is(kForward, Op::kForwardDrop) && !has(kRecompute))
      return Missing(Op::kRecompute, kRecompute, s, m, kForward);
    if (is(kForward, Op::kForward) && has(kRecompute))
      return Missing(Op::kForwardDrop, kForward, s, m, kRecompute);
    if (is(kBackward, Op::kBackwardInput) && !has(kWeight))
      return Missing(Op::kBackwardWeight, kWeight, s, m, kBackward);
    if (is(kBackward, Op::kBackward) && has(kWeight))
      return Missing(Op::kBackwardInput, kBackward, s, m, kWeight);
    PP_RETURN_IF_ERROR(Order(kForward, s, kRecompute, s, m));
    PP_RETURN_IF_ERROR(Order(kForward, s, kBackward, s, m));
    PP_RETURN_IF_ERROR(Order(kRecompute, s, kBackward, s, m));
    return Order(kBackward, s, kWeight, s, m);
  }

  // Between stage s and the next one, if they are on two devices.
  Status CheckMessages(int s, int m) {
    if (program_.DeviceOf(s, m) == program_.DeviceOf(s + 1, m)) return {};
    for (const auto& [slot, op, other] : {std::tuple(kSendAct, Op::kSendAct, kRecvAct),
                                          {kRecvAct, Op::kRecvAct, kSendAct},
                                          {kSendGrad, Op::kSendGrad, kRecvGrad},
                                          {kRecvGrad, Op::kRecvGrad, kSendGrad}})
      if (At(slot, s, m) < 0) return Missing(op, slot, s, m, other);
    PP_RETURN_IF_ERROR(Order(kForward, s, kSendAct, s, m));
    PP_RETURN_IF_ERROR(Order(kRecvAct, s, kForward, s + 1, m));
    PP_RETURN_IF_ERROR(Order(kBackward, s + 1, kSendGrad, s, m));
    return Order(kRecvGrad, s, kBackward, s, m);
  }

  const Program& program_;
  const Naming& name_;
  bool messages_ = false;
  std::vector<std::array<int32_t, kSlots>> index_of_;  // by stage and micro-batch
};

}  // namespace

Status CheckSchedule(const Program& program, const Naming& name) {
  return Checker(program, name).Run();
}

}  // namespace pp
