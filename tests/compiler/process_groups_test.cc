// What an executor with a communicator for each set of members makes, of every scheme.
#include "schema/nccl/process_groups.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <tuple>

#include "compiler/compile.h"
#include "schema/nccl/prove.h"

namespace pp::nccl {

TEST_CASE("what each device starts is in them, and none of a round meets another") {
  for (const Scheme& scheme : Schemes())
    for (const int replicas : {1, 2})
      for (const int zero : {0, 1}) {
        CompileOptions options{.scheme = std::string(scheme.name), .shape = {4, 8, 0}};
        options.replicas = replicas;
        options.zero = zero;
        INFO(scheme.name << " " << replicas << " " << zero);
        const auto plan = Compile(options);
        INFO(plan.status().message());
        REQUIRE((plan.ok() || zero == 1));  // versions of the weights have no shards
        if (!plan.ok()) continue;
        const auto needs = Prove(*plan, {});
        REQUIRE(needs.ok());
        const ProcessGroups groups =
            ProcessGroupsOf(*plan, needs->sharings, StreamPer::kCommunicator);
        const auto& all = groups.assignment.communicators;

        // Each communicator once, and each device once in a round.
        std::vector<int> made(all.size(), 0);
        for (const auto& round : groups.rounds) {
          std::vector<int> used(plan->devices, 0);
          for (const int32_t c : round) {
            ++made[c];
            for (const int32_t d : all[c].devices) CHECK(++used[d] == 1);
          }
        }
        CHECK(made == std::vector<int>(all.size(), 1));

        // A device's messages, and its collectives in its order.
        for (int d = 0; d < plan->devices; ++d) {
          size_t k = 0;
          for (const Instruction& i : plan->lists[d].body) {
            if (Info(i.op).lane == Lane::kSend)
              CHECK(std::count_if(all.begin(), all.end(), [&](const Communicator& one) {
                      return std::any_of(one.flows.begin(), one.flows.end(), [&](const Flow& flow) {
                        return flow.kind == KindOfMessage(i.op) &&
                               flow.members == std::vector<int32_t>{d, i.peer} && one.Has(d) &&
                               one.Has(i.peer);
                      });
                    }) == 1);
            if (Info(i.op).lane != Lane::kReduce) continue;
            const auto mine = [&](const Collective& one) {
              return std::count(one.members.begin(), one.members.end(), d) > 0;
            };
            while (k < groups.collectives.size() && !mine(groups.collectives[k])) ++k;
            REQUIRE(k < groups.collectives.size());
            const Collective& one = groups.collectives[k];
            CHECK(std::tuple(one.instruction.op, one.instruction.stage, one.instruction.bucket) ==
                  std::tuple(i.op, i.stage, i.bucket));
            const int32_t of = groups.of_collective[k++];
            if (of >= 0) CHECK(all[of].devices == one.members);
            CHECK((of < 0) == (one.members.size() == 1 && replicas == 1));
            const bool shards = zero == 1 && plan->Copies() > 1;
            if (of >= 0)
              CHECK(groups.over_replicas[of] ==
                    (replicas > 1 && (i.op != Op::kReduceNorm || shards)));
          }
        }
      }
}

}  // namespace pp::nccl
