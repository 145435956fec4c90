// A program: one instruction list per device, and what they are about. This is what
// pipec writes and piperun executes. It is plain data; text.h prints and parses it,
// file.h stores it, verify.h says whether it is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schema/instruction.h"
#include "schema/model/attribute.h"
#include "schema/model/batch_ramp.h"
#include "schema/model/costs.h"
#include "schema/model/layout.h"

namespace pp {

enum class P2p : uint8_t { kAsync, kBlocking };

// Which ranks are neighbours, from the inside out: tensor-parallel peers; then the devices of a
// pipeline, or the replicas.
enum class RankOrder : uint8_t { kTpPpDp, kTpDpPp };

// More stages or micro-batches than this are a mistake (a plan file reaches its limit earlier), and
// tables that grow with them should not exhaust a machine's memory to find out.
inline constexpr int32_t kMostCount = 1 << 24;

// Routines beside the step's.
inline constexpr size_t kMostRoutines = 64;

// One copy of the model placed on the devices: stage -> device.
struct Pipe {
  std::vector<int32_t> device_of;
  bool operator==(const Pipe&) const = default;
};

// Memory that a device holds from the first step to the last.
struct Region {
  Kind kind;
  int32_t stage;  // -1 where it belongs to the whole device
  int32_t pipe;   // of the stage's copy; -1 where there is one, or no stage
  int64_t offset;
  int64_t bytes;
  bool operator==(const Region&) const = default;
};

// What a plan has beside its step: lists over the same memory, which run between two steps, by
// their name (routines.h).
struct Routine {
  std::string name;
  int32_t microbatches = 0;
  std::vector<int32_t> pipe_of;  // micro-batch -> pipe
  bool operator==(const Routine&) const = default;
};

struct DeviceList {
  std::vector<Instruction> body;                   // of a step
  std::vector<std::vector<Instruction>> routines;  // of each of Program::routines
  std::vector<Region> regions;
  int64_t arena_bytes = 0;  // the peak: regions and values, 0 before plan-memory
  bool operator==(const DeviceList&) const = default;
};

// How often a step updates this copy of a stage's weights.
inline int64_t UpdatesOf(const DeviceList& list, int stage, int pipe) {
  return std::count_if(list.body.begin(), list.body.end(), [=](const Instruction& i) {
    return i.op == Op::kStep && i.stage == stage && (i.pipe < 0 || i.pipe == pipe);
  });
}

// Versions of its weights that a device keeps: as many as it uses.
inline int64_t VersionsOn(const DeviceList& list) {
  int versions = 1;
  for (const Instruction& i : list.body) versions = std::max(versions, i.version + 1);
  return versions;
}

struct Program {
  std::string scheme;
  std::string passes;  // as given to --passes
  // What its instructions cost; nothing: by the model's work, or the table's numbers.
  std::optional<CostModel> costs;
  P2p p2p = P2p::kAsync;
  int32_t devices = 0;
  int32_t stages = 0;
  int32_t microbatches = 0;
  std::vector<Pipe> pipes;
  std::vector<int32_t> pipe_of;   // micro-batch -> pipe
  std::vector<int32_t> shape_of;  // micro-batch -> shape of the job's; empty: there is one
  // K steps are K bodies. If steps overlap, micro-batches from M on are those of the next step
  // (sections.h).
  bool overlaps = false;
  int32_t replicas = 1;  // data-parallel copies of all that; all have the same lists
  int32_t zero = 0;      // 1: the optimizer's state is sharded over a stage's copies (ZeRO-1)
  bool clip = true;      // false: no gradient norm, so that no STEP waits for all devices
  RankOrder rank_order = RankOrder::kTpPpDp;  // how ranks are numbered (topology.h)
  // Of a program without a model: the stages that share a tensor, ascending (TiedStages).
  std::vector<int32_t> tied;
  BatchRamp ramp;          // which steps have fewer micro-batches than the bodies: step-M
  std::optional<Job> job;  // the model, where one was given
  bool evaluates = false;  // the bodies modify nothing; never in a file
  bool beside = false;     // the bodies are those of a routine beside a step; never in a file
  std::vector<Routine> routines;  // beside the step
  std::vector<DeviceList> lists;
  bool operator==(const Program&) const = default;

  // The same without lists, and without routines.
  Program Head() const;
  // Whether STEPs make versions of the weights (PipeDream). There is no norm then.
  bool MakesVersions() const;
  // Of a micro-batch, also of another step; of what belongs to none it does not matter.
  int ShapeOf(int micro) const {
    return micro < 0 || shape_of.empty() ? 0 : shape_of[micro % shape_of.size()];
  }
  int shapes() const { return job ? job->shapes.count() : 1; }
  // The tokens of a micro-batch of that shape, in those of the job's own.
  double SizeOf(int shape) const;
  // The device that runs `stage` for a micro-batch.
  int32_t DeviceOf(int stage, int micro) const { return pipes[pipe_of[micro]].device_of[stage]; }
  // The devices that make and use an act or a grad, perhaps the same. act(s,m) goes from stage s to
  // s+1, grad(s,m) from s+1 to s. REQUIRES: s is not the last stage.
  struct Ends {
    int32_t maker, user;
  };
  Ends EndsOf(const Value& v) const {
    const int32_t before = DeviceOf(v.stage, v.micro), after = DeviceOf(v.stage + 1, v.micro);
    return v.kind == Kind::kAct ? Ends{before, after} : Ends{after, before};
  }
  // The stages that a device holds, ascending.
  std::vector<int32_t> StagesOf(int device) const;
  // The pipes that place `stage` on `device`, ascending.
  std::vector<int32_t> PipesOf(int stage, int device) const;
  // Ranks that hold a copy of a stage's weights: pipes times replicas.
  int64_t Copies() const { return static_cast<int64_t>(pipes.size()) * replicas; }
  // The stages that share a tensor, ascending, of whose gradients REDUCE_tied sums all copies. A
  // model with tied embeddings shares its table between its first and its last stage.
  std::vector<int32_t> TiedStages() const;
  bool IsTied(int stage) const;
  // 1/V for each stage, V being the number of stages that the first pipe places on its device.
  std::vector<double> Shares() const;
  // The same V if it is equal for all devices, else the mean, rounded down.
  int StagesPerDevice() const;
};

// After a comma: the default of each, and what else there may be.
inline constexpr char kCostsHelp[] =
#define PP_COST(key, initial, unit, of, part, most, fallback, meaning) "," #key "=" fallback
#include "schema/model/costs.def"
    "; each may be a list, one value per stage, f=1:1:2:1; or files of piperun --profile, or one "
    "of pipec.torch.profile";
inline constexpr std::string_view kP2pNames[] = {"async", "blocking"};
inline constexpr std::string_view kZeroNames[] = {"0", "1"};
inline constexpr std::string_view kClipNames[] = {"off", "exact"};
inline constexpr std::string_view kRankOrderNames[] = {"tp,pp,dp", "tp,dp,pp"};
// Of a Program, or of what has members of the same names: CompileOptions.
template <typename Owner>
inline constexpr std::tuple kProgramAttributes{
    Attribute{"passes", &Owner::passes, 2, "--passes", "from `pipec passes`, separated by commas"},
    Attribute{"p2p", &Owner::p2p, 3, "--p2p", "how messages are sent", kP2pNames},
    Attribute{
        "replicas", &Owner::replicas, 11, "--dp", "data-parallel replicas", {}, 1, kMostCount},
    Attribute{"zero", &Owner::zero, 12, "--zero", "1: spread the optimizer over a stage's copies",
              kZeroNames},
    Attribute{"clip", &Owner::clip, 13, "--grad-norm",
              "gradients by their norm, which all devices then wait for", kClipNames},
    Attribute{"costs", &Owner::costs, 14, "--costs", kCostsHelp + 1},
    Attribute{"tied", &Owner::tied, 15, "--tied",
              "without a model: stages that share a tensor, as in 0,S-1 (the first and the last)"},
    Attribute{"rank-order", &Owner::rank_order, 16, "--rank-order",
              "which ranks are neighbours, from the inside out: so in a node", kRankOrderNames},
    Attribute{"batch-ramp", &Owner::ramp, 19, "--batch-ramp",
              "micro-batches of a replica's step, after so many steps: 16@0,32@1000 (sets "
              "--microbatches)"},
};
// Those that have the same type in both.
template <typename From, typename To>
void CopyAttributes(const From& from, To* to) {
  const auto copy = [&]<typename A, typename B>(A From::*source, B To::*target) {
    if constexpr (std::is_same_v<A, B>) to->*target = from.*source;
  };
  [&]<size_t... row>(std::index_sequence<row...>) {
    (copy(std::get<row>(kProgramAttributes<From>).member,
          std::get<row>(kProgramAttributes<To>).member),
     ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(kProgramAttributes<To>)>>());
}

}  // namespace pp
