// From what runs measured (piperun --profile) to the costs of other plans of their model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/machine/costs.h"
#include "compiler/machine/machine.h"
#include "schema/format/profile.h"
#include "schema/format/stage_costs.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// Profiles of one model on one machine, of several plans: of other cuts, or with micro-batches of
// other sizes. REQUIRES: at least one, of one model, dtype and backend.
using Profiles = std::vector<Profile>;

// Whether the two can be used together. Error: why not.
Status CheckAlike(const Profile& first, const Profile& other);

// A machine on which the profiles' stages take as long, together, as was measured; how its times
// relate to one another is assumed (of a GPU as of an H200, of a CPU as of "cpu").
Machine FitMachine(const Profiles& profiles);

// In seconds. Where the program's stages are those that were measured, as they were, on average
// over the profiles of them: runs at several times even out what else the machine did. Otherwise
// the assumed machine says how the stages relate, and for each kind of instruction the measured
// ones how long they take: between two measured sizes of a micro-batch in between, by the logarithm
// of its tokens, below and above them as at the nearest; if some have the program's --tp, as those
// say. Error: another model, dtype or backend.
Result<CostModel> CostsOn(const Profiles& profiles, const Program& program);

// What costs follow from, instead of being given as numbers: at most one of the three.
struct PriceSource {
  std::optional<Machine> machine;
  Profiles profiles;
  std::optional<CostModel> stages;  // of a pipeline without a model (format/stage_costs.h)
  std::string names;                // of the files
  // For a machine alone, of plans whose jobs differ as Layouts allow: what is known of them.
  std::shared_ptr<Layouts> layouts = nullptr;

  bool given() const { return machine || !profiles.empty() || stages; }
};
// REQUIRES: one is given. Error: those of the above, with the option or the files; a model is
// missing, or there is one where costs are of stages.
Result<CostModel> CostsOn(const PriceSource& source, const Program& program);

}  // namespace pp
