#include "schema/semantics/alive.h"

#include <algorithm>
#include <numeric>

namespace pp {
namespace {

size_t At(Kind kind) { return static_cast<size_t>(kind); }

// Few enough to be added, whatever a file says.
int64_t Whole(double bytes) { return static_cast<int64_t>(std::min(bytes, 0x1p61)); }

}  // namespace

AliveBytes::AliveBytes(const Program& program, const CostModel& costs)
    : program_(program), placement_(program), bytes_(program.stages) {
  for (int s = 0; s < program.stages; ++s)
    for (const KindInfo& kind : Kinds())
      bytes_[s][At(kind.kind)] = pp::BytesOf(costs, kind.kind, s);
}

double AliveBytes::BytesOf(const Value& v) const {
  return v.kind == Kind::kNone ? 0 : bytes_[v.stage][At(v.kind)];
}

int64_t AliveBytes::Always(int device) const {
  double bytes = 0;
  for (const Placement::Copy& copy : placement_.On(device))
    bytes += bytes_[copy.stage][At(Kind::kWeights)];
  return Whole(bytes * static_cast<double>(VersionsOn(program_.lists[device])));
}

AliveBytes::Most AliveBytes::MostOn(int device) const {
  ByKind alive{};
  alive[At(Kind::kWeights)] = static_cast<double>(Always(device));
  Most most{.bytes = alive, .sum = Always(device)};
  const std::vector<Instruction>& list = program_.lists[device].body;
  for (size_t index = 0; index < list.size(); ++index) {
    const Instruction& i = list[index];
    const OpInfo& op = Info(i.op);
    ByKind after{};  // what changes at its end
    double needs = 0;
    if (i.op == Op::kWait) {
      if (i.sent) after[At(i.value)] -= bytes_[i.stage][At(i.value)];
    } else if (IsMessage(i)) {
      const size_t kind = At(KindOfMessage(i.op));
      if (op.lane == Lane::kRecv) alive[kind] += bytes_[i.stage][kind];
      if (op.lane == Lane::kSend && program_.p2p == P2p::kBlocking)
        after[kind] -= bytes_[i.stage][kind];
    } else if (op.lane == Lane::kCompute && i.op != Op::kLoad) {
      needs = bytes_[i.stage][At(Kind::kScratch)];
      if (op.fields.Has(Field::kMicro)) {
        double read = 0;
        for (const Operand& operand : op.reads) {
          const Value v = Resolve(operand, i, program_.stages);
          after[At(v.kind)] -= BytesOf(v);
          read += BytesOf(v);
        }
        for (const Operand& operand : op.writes) {
          const Value v = Resolve(operand, i, program_.stages);
          const double shared = v.kind == op.keeps ? std::min(BytesOf(v), read) : 0;
          alive[At(v.kind)] += BytesOf(v) - shared;
          after[At(v.kind)] += shared;
        }
      }
    }
    alive[At(Kind::kScratch)] = needs;
    const int64_t sum = Whole(std::accumulate(alive.begin(), alive.end(), 0.0));
    if (most.index < 0 || sum > most.sum) most = {static_cast<int>(index), alive, sum};
    for (size_t k = 0; k < alive.size(); ++k) alive[k] += after[k];
  }
  return most;
}

}  // namespace pp
