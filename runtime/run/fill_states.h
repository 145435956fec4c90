// The initial contents of a rank's states: weights, and moments of zero.
#pragma once

#include "runtime/device/device.h"
#include "runtime/model/parameters.h"
#include "schema/program.h"
#include "schema/topology.h"

namespace pp {

// Fills those of all copies that the program places on the place's device, one tensor at a time.
// The newest version of the weights is the first one; older ones are never read before they are
// made.
// Errors: WeightSource's.
Status FillStates(const Program& program, const Place& place, WeightSource* weights,
                  Device* memory);

// If the device's dtype scales the loss: sets the scale of the next step.
void FillLossScale(const Program& program, int device, const kernels::LossScale& scale,
                   Device* memory);

}  // namespace pp
