// From a scheme's name to a plan: the schedule, the passes, the proof.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/machine/fit.h"
#include "compiler/pass.h"
#include "compiler/scheme.h"
#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/text.h"

namespace pp {

struct CompileOptions {
  std::string scheme;
  Shape shape;  // stages_per_device 0: the scheme's default
  std::string passes;
  P2p p2p = P2p::kAsync;
  std::optional<Reduce> reduce;  // empty: early
  int replicas = 1;              // --dp
  int zero = 0;
  std::optional<bool>
      clip;                // --grad-norm exact or off; empty: exact, off where there can be no norm
  std::string costs;       // as --costs has them
  std::string tied;        // --tied: "0,S-1"; empty: as lists say
  bool evaluates = false;  // --evaluation: also without a model
  RankOrder rank_order = RankOrder::kTpPpDp;
  BatchRamp ramp;      // --batch-ramp; given: the shape's micro-batches follow from it
  PriceSource prices;  // costs from it and the model, instead of those
  Job job;             // without a model, one without layers; empty or 0: see the table's help
  bool balance_layers = false;  // instead of the job's
  MemoryFit fit;                // a limit runs fit-memory after `passes`
  bool proves = true;           // after each pass; else the caller proves the plan
  Form leaves = Form::kPlan;    // REQUIRES: kFitted or more
};

// Called before and after the scheme ("scheme"), each pass, and the pass's proof ("verify").
struct PassObserver {
  std::function<void(std::string_view name)> begin;
  std::function<void(std::string_view name, const Program& program, double seconds)> end;
};

// A plan, verified unless the options leave that to the caller. Errors name the option.
Result<Program> Compile(const CompileOptions& options, const PassObserver& observer = {});

// Where lists come from, as their author knows them.
struct Origin {
  std::string file;
  Naming name = NameByIndex;
};

// A verified plan from lists that a user brought; of the options, scheme and shape are ignored.
// Compute instructions alone become a plan as a scheme's do. SENDs and RECVs between them keep
// their order. Lists that go further (WAIT, REDUCE, STEP) are taken as they are and get their
// memory. Routines are made anew. Errors name the option, or the file and where in it.
Result<Program> CompileLists(Program program, const Origin& origin, const CompileOptions& options,
                             const PassObserver& observer = {});

// Runs the passes that every plan needs from `form` on: for imported programs.
Status Lower(Program& program, Form form, const PassContext& context,
             const PassObserver& observer = {});

}  // namespace pp
