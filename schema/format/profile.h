// What a run measured (piperun --profile), for what predicts others (pipec --costs, --machine).
//
// A profile is one JSON object:
//   {"profile": 1, "host": "Intel(R) Xeon(R) ...", "threads": 1, "cores": 1, "steps": 18,
//    "model": {...},
//    "job": {"batch": "4", "sequence": "128", "layers": "3,3", "tp": "1", "dtype": "fp32", ...},
//    "seconds": {"f": [0.031, 0.036], "b": [...], ...}}
// or, of a plan whose micro-batches have several shapes (model/shapes.h), a list of such objects,
// one for each of them; with the job's attributes as pipec's options have them, and the medians of
// each kind of instruction by stage, null where there were none, under the keys of --costs.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/format/timeline.h"
#include "schema/program.h"

namespace pp {

// What is measured, by key of --costs. Messages and reductions also wait for others, which is not
// their cost: of those it is the shortest tenth. What a message takes beside that is from when its
// SEND could be passed to the end of a WAIT that was there before (latency), and how long the
// compute lane was at the SEND (post).
enum class Measured : uint8_t { kF, kR, kB, kBi, kBw, kStep, kReduce, kComm, kLatency, kPost };
inline constexpr std::array<std::string_view, 10> kMeasuredKeys = {
    "f", "r", "b", "bi", "bw", "step", "reduce", "comm", "latency", "post"};

struct Profile {
  Job job;  // what was trained
  int threads = 1;
  int cores = 0;     // of the ranks' machine for each of them; 0: not known
  int steps = 0;     // that were measured
  std::string host;  // its processor
  // By kind and stage, of one micro-batch or step; -1 where there were none.
  std::array<std::vector<double>, kMeasuredKeys.size()> seconds;

  std::vector<double>& of(Measured kind) { return seconds[static_cast<size_t>(kind)]; }
  const std::vector<double>& of(Measured kind) const { return seconds[static_cast<size_t>(kind)]; }
};

// The value below which that share of them lies. REQUIRES: there are some.
double Quantile(std::vector<double> values, double at);

// Of the events of a run without its first two steps, those of micro-batches of one shape, and of
// none. REQUIRES: the program has a job.
Profile ProfileOf(const Program& program, std::span<const Event> events, int shape = 0);

// At least one.
std::string ToJson(std::span<const Profile> profiles);
// Error: what is wrong, without the file's name.
Result<std::vector<Profile>> ParseProfiles(const std::string& json);

}  // namespace pp
