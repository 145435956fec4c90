// The other way of insert-comm: the messages of an imported schedule, in its own order.
//
// SEND and RECV return to their places between the compute instructions. With blocking sends that
// is all. Asynchronous ones get their WAITs: before the use, and for the end of the send where it
// delays nothing. The lists are simulated with every such WAIT at the end; it then moves to just
// after the first instruction that starts when the other side starts to use the value.
//
//   device 0 holds s0                device 0 holds s0
//     FW        s0 m0                  FW        s0 m0
//     SEND_act  s0 m0 to d1            SEND_act  s0 m0 to d1
//     FW        s0 m1           =>     FW        s0 m1
//     ...                              WAIT      act s0 m0 sent
#include <algorithm>
#include <map>
#include <tuple>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "schema/play/execute.h"
#include "schema/proof/verify.h"

namespace pp {
namespace {

// `list` contains the compute instructions of `given`, and others.
std::vector<Instruction> Merge(const std::vector<Instruction>& list,
                               const std::vector<Instruction>& given) {
  std::vector<Instruction> merged;
  auto next = given.begin();
  auto take_messages = [&] {
    while (next != given.end() && IsMessage(*next)) merged.push_back(*next++);
  };
  for (const Instruction& i : list) {
    take_messages();
    if (next != given.end() && *next == i) ++next;
    merged.push_back(i);
  }
  take_messages();
  PP_CHECK(next == given.end());
  return merged;
}

// The name of an act or a grad on all devices.
using Name = std::tuple<Kind, int, int>;

Name NameOf(const Instruction& message) {
  return {KindOfMessage(message.op), message.stage, message.micro};
}
enum class Wait { kArrival, kSent };
Instruction WaitFor(const Name& name, Wait what) {
  const auto [kind, stage, micro] = name;
  return {
      .op = Op::kWait, .value = kind, .sent = what == Wait::kSent, .stage = stage, .micro = micro};
}

// Messages that devices receive: when each is first used.
using Received = std::map<Name, double>;

// Calls use(iterator) for what `i` reads of `received`.
template <typename Use>
void ForReads(const Program& program, const Instruction& i, Received& received, Use use) {
  for (const Operand& operand : Info(i.op).reads) {
    const Value v = Resolve(operand, i, program.stages);
    const auto found = received.find({v.kind, v.stage, v.micro});
    if (found != received.end()) use(found);
  }
}

// WAITs before the uses, and finally those for the ends of the sends.
std::vector<Instruction> WithWaits(const Program& program, const std::vector<Instruction>& list) {
  std::vector<Instruction> out, ends;
  Received received;
  auto wait = [&](const Instruction& i) {
    ForReads(program, i, received, [&](Received::iterator found) {
      out.push_back(WaitFor(found->first, Wait::kArrival));
      received.erase(found);
    });
  };
  const std::vector<bool> first_half = FirstHalves(list);
  for (size_t i = 0; i < list.size(); ++i) {
    const Lane lane = Info(list[i].op).lane;
    if (lane == Lane::kRecv) received.emplace(NameOf(list[i]), 0);
    if (lane == Lane::kSend) ends.push_back(WaitFor(NameOf(list[i]), Wait::kSent));
    wait(list[i]);
    if (first_half[i] && i + 1 < list.size()) wait(list[i + 1]);
    out.push_back(list[i]);
  }
  out.insert(out.end(), ends.begin(), ends.end());
  return out;
}

Received FindUses(const Program& program, const Execution& execution) {
  Received received;
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body)
      if (Info(i.op).lane == Lane::kRecv) received.emplace(NameOf(i), 0);
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    for (size_t i = 0; i < list.size(); ++i)
      ForReads(program, list[i], received,
               [&](Received::iterator found) { found->second = execution.spans[d][i].start; });
  }
  return received;
}

// The list with its last WAITs, those for the ends of sends, moved to where they delay nothing.
std::vector<Instruction> WithWaitsMoved(std::vector<Instruction> list,
                                        const std::vector<Span>& spans, const Received& received) {
  const auto sends = std::count_if(list.begin(), list.end(), [](const Instruction& i) {
    return Info(i.op).lane == Lane::kSend;
  });
  list.resize(list.size() - sends);
  const std::vector<bool> first_half = FirstHalves(list);
  std::vector<std::pair<double, size_t>> starts;  // of what takes time, ascending
  for (size_t i = 0; i < list.size(); ++i)
    if (IsCompute(list[i]) && !first_half[i] && spans[i].end > spans[i].start)
      starts.push_back({spans[i].start, i});

  std::vector<std::vector<Instruction>> behind(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (Info(list[i].op).lane != Lane::kSend) continue;
    const Name name = NameOf(list[i]);
    const auto next =
        std::lower_bound(starts.begin(), starts.end(), std::pair(received.at(name), i));
    size_t at = std::max(i, next == starts.end() ? list.size() - 1 : next->second);
    // Not between messages: their order is given.
    while (at + 1 < list.size() && IsMessage(list[at + 1])) ++at;
    behind[at].push_back(WaitFor(name, Wait::kSent));
  }
  std::vector<Instruction> out;
  for (size_t i = 0; i < list.size(); ++i) {
    out.push_back(list[i]);
    out.insert(out.end(), behind[i].begin(), behind[i].end());
  }
  return out;
}

}  // namespace

Status KeepComm(Program& program, const PassContext& context) {
  for (int d = 0; d < program.devices; ++d)
    program.lists[d].body = Merge(program.lists[d].body, (*context.comm)[d]);
  if (program.p2p == P2p::kBlocking) return {};

  for (DeviceList& list : program.lists) list.body = WithWaits(program, list.body);
  std::vector<WaitsFor> waits_for;
  PP_RETURN_IF_ERROR(Verify(program, Depth::kLists, &waits_for));
  Execution execution;
  PP_RETURN_IF_ERROR(Execute(program, waits_for, PositiveCosts(context.costs), &execution));
  const Received received = FindUses(program, execution);
  for (int d = 0; d < program.devices; ++d)
    program.lists[d].body = WithWaitsMoved(program.lists[d].body, execution.spans[d], received);
  return {};
}

}  // namespace pp
