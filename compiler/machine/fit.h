// From what a run measured (piperun --profile) to the costs of other plans of its model.
#pragma once

#include <optional>

#include "compiler/machine/machine.h"
#include "schema/format/profile.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// A machine on which the profile's stages take as long, together, as was measured; how its times
// relate to one another is assumed (of a GPU as of an H200).
Machine FitMachine(const Profile& profile);

// In seconds. Where the program's stages are those that were measured, as they were. Otherwise the
// assumed machine says how the stages relate, and for each kind of instruction the measured ones
// how long they take. Error: another model, dtype or backend.
Result<CostModel> CostsOn(const Profile& profile, const Program& program);

// What costs follow from, instead of being given as numbers: at most one of the two.
struct PriceSource {
  std::optional<Machine> machine;
  std::optional<Profile> profile;
  std::string name;  // of the profile's file

  bool given() const { return machine || profile; }
};
// REQUIRES: one is given, and the program has a job. Error: those of the above, with the option or
// the file.
Result<CostModel> CostsOn(const PriceSource& source, const Program& program);

}  // namespace pp
