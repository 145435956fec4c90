// From what a run measured (piperun --profile) to the costs of other plans of its model.
#pragma once

#include <optional>

#include "compiler/machine/machine.h"
#include "schema/cost_model.h"
#include "schema/profile.h"
#include "schema/program.h"

namespace pp {

// The machine on which the profile's stages would take what was measured: seconds for an operation
// of a product and of attention, for a byte of what is neither, for an operator, and for a byte of
// a message and of an optimizer's step. Least squares of the relative errors, none below 0.
Machine FitMachine(const Profile& profile);

// In seconds. Where the program's stages are those that were measured, as they were; otherwise on
// the fitted machine. Error: another model, dtype or backend, or nothing measured.
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
