#include "schema/semantics/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "schema/text.h"

namespace pp {
namespace {

// The copies of a stage reduce together, and those of all tied stages their tensor.
using Key = std::tuple<Op, int, int>;
Key KeyOf(const Instruction& i) { return {i.op, i.stage, i.bucket}; }

std::string NameOf(const Collective& collective) {
  Instruction i = collective.instruction;
  i.pipe = -1;  // each member has its own
  return ToText(i);
}

}  // namespace

Collectives FindCollectives(const Program& program) {
  Collectives found;
  found.started_by.resize(program.devices);
  std::map<Key, std::vector<int>> rounds;
  for (int d = 0; d < program.devices; ++d) {
    std::map<Key, size_t> seen;
    for (const Instruction& i : program.lists[d].body) {
      if (Info(i.op).lane != Lane::kReduce) continue;
      std::vector<int>& round = rounds[KeyOf(i)];
      const size_t k = seen[KeyOf(i)]++;
      if (k == round.size()) {
        round.push_back(static_cast<int>(found.all.size()));
        found.all.push_back({i, {}});
      }
      found.all[round[k]].members.push_back(d);
      found.started_by[d].push_back(round[k]);
    }
  }
  return found;
}

std::vector<Collective> InOneOrder(Collectives collectives) {
  std::vector<size_t> missing;  // members that have not come to it
  for (const Collective& one : collectives.all) missing.push_back(one.members.size());
  std::vector<size_t> next(collectives.started_by.size(), 0);
  std::vector<int> going(next.size());
  std::iota(going.rbegin(), going.rend(), 0);
  std::vector<Collective> ordered;
  while (!going.empty()) {
    const int device = going.back();
    going.pop_back();
    const std::vector<int>& started = collectives.started_by[device];
    if (next[device] == started.size()) continue;
    const int at = started[next[device]++];
    if (--missing[at] > 0) continue;
    const std::vector<int>& members = collectives.all[at].members;
    going.insert(going.end(), members.rbegin(), members.rend());
    ordered.push_back(std::move(collectives.all[at]));
  }
  return ordered;
}

bool IsOverReplicas(const Program& program, Op op) {
  return program.replicas > 1 && (op != Op::kReduceNorm || program.zero == 1);
}

Status FindOppositeOrders(const Program& program) {
  const Collectives collectives = FindCollectives(program);
  for (int a = 0; a < program.devices; ++a)
    for (int b = a + 1; b < program.devices; ++b) {
      std::map<int, size_t> place;  // in b's order
      for (int at : collectives.started_by[b]) place.emplace(at, place.size());
      int last = -1;
      for (int at : collectives.started_by[a]) {
        if (!place.contains(at)) continue;
        if (last >= 0 && place[at] < place[last])
          return Status::Invalid(fmt::format(
              "collectives {} and {}: device {} starts them in this order, device {} the other way "
              "round (all members of a group start their collectives in one order)",
              NameOf(collectives.all[last]), NameOf(collectives.all[at]), a, b));
        last = at;
      }
    }
  return {};  // perhaps a cycle of three or more
}

}  // namespace pp
