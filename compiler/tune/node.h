// What the search of tune works on: candidates, of which there are tens of thousands, as small as
// they can be. The model's part of one, and what belongs to it, is in a table (Jobs), its schedule
// is built when it is needed (Sketches).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/balance.h"
#include "compiler/scheme.h"
#include "compiler/tune/space.h"
#include "compiler/tune/tune.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// What recomputes.
enum class Way : uint8_t { kNone, kAll, kMario, kFit };

struct Node {
  const Scheme* scheme = nullptr;
  int devices = 0;            // of a pipeline
  int stages_per_device = 0;  // 0: the scheme's own
  int microbatches = 0, replicas = 0;
  int job = 0;  // of Jobs
  Variant variant;
  Way way = Way::kNone;
  Level level = Level::kWork;
  bool open = false, counted = false, fits = true;  // as Candidate has them
  double seconds = 0, bytes = 0, bubble = 0;
  Parts parts;
  const char* lacks = "";

  Shape shape() const {
    return {
        .devices = devices, .microbatches = microbatches, .stages_per_device = stages_per_device};
  }
};

// Layers of stages, by what the layers, the first and the last stage cost and by the stages.
using Balances = std::map<std::tuple<double, double, double, StageMap, int, int>, std::vector<int>>;

// The model's part of candidates: sizes, sequence parallelism and what is kept.
class Jobs {
 public:
  struct Entry {
    Job job;
    std::vector<std::vector<OperatorKind>> keeps;  // that there are, the most first
    size_t keep = 0;                               // of them, the job's
    Status legal;
    Result<LayerCosts> costs = LayerCosts();
  };
  Jobs(const TuneOptions& options, const PriceSource& prices, Balances* balances)
      : options_(options), prices_(prices), balances_(*balances) {}

  // The number of the one with these sizes that keeps the most.
  int Of(int tp, int size, bool sequence_parallel);
  // Those that keep less; none but of the one that keeps the most.
  std::vector<int> Smaller(int job);
  bool KeepsLeast(int job) const { return entries_[job]->keep + 1 == entries_[job]->keeps.size(); }
  const Job& operator[](int job) const { return entries_[job]->job; }
  // Gives the program this job, with its layers on the stages. Error: it is not legal, or has a
  // stage between the first and the last that has no layer.
  Status Put(int job, const Scheme& scheme, Program* program);

 private:
  int Add(Job job, std::vector<std::vector<OperatorKind>> keeps, size_t keep);

  const TuneOptions& options_;
  const PriceSource& prices_;
  Balances& balances_;
  std::map<std::tuple<int, int, bool, size_t>, int> numbers_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

// Schedules of which only the pipes, and which kinds of instructions one list has, are there, for
// as few micro-batches as show them. Most candidates share theirs.
class Sketches {
 public:
  struct Sketch {
    Result<Program> program;
    uint64_t kinds = 0;  // of instructions: two that have the same, and pipes, have the same bounds
  };
  explicit Sketches(const TuneOptions& options) : options_(options) {}
  Sketch& Of(const Scheme& scheme, Shape shape);
  // Whether its steps overlap, so that it trains otherwise; false where that is not known yet.
  bool AreOverlapping(const Scheme& scheme) const { return overlapping_.contains(scheme.name); }

  // Those to try, with their numbers of stages on a device. On one device many schemes are the same
  // one. Several stages, whose gradients are reduced one by one, and split backwards make others.
  // No order that there is repeats after more micro-batches than are compared.
  using Ones = std::vector<std::pair<const Scheme*, int>>;
  const Ones& SchemesOn(int devices, int microbatches);

 private:
  const TuneOptions& options_;
  std::map<std::pair<int, int>, Ones> ones_;
  std::map<std::tuple<std::string_view, int, int, int>, Sketch> sketches_;
  std::set<std::string_view> overlapping_;
};

// What searches share whose machines differ in their links alone.
struct Shared {
  explicit Shared(const TuneOptions& options) : sketches(options) {}
  Sketches sketches;
  Balances balances;
  // Bytes of the device that needs most, by its schedule, the job's sizes and what a stage holds.
  std::map<std::tuple<std::string_view, int, int, int, int, int, int, int, bool,
                      std::vector<OperatorKind>, std::vector<int>>,
           double>
      bytes_by_lists;
  std::shared_ptr<Layouts> layouts = std::make_shared<Layouts>();
  // For another thread.
  Shared Copy() const {
    Shared copy = *this;
    copy.layouts = std::make_shared<Layouts>(*layouts);
    return copy;
  }
};

// Whether a program's steps overlap.
bool Overlaps(const Program& program);

// What compiles a candidate; `job`: its job.
CompileOptions CompileOf(const TuneOptions& options, const PriceSource& prices, const Job& job,
                         const Node& node);
// As the outcome has it.
Candidate CandidateOf(CompileOptions compile, const Node& node);

}  // namespace pp
