// How a step looks: to people, one line; to programs, one JSON object.
#pragma once

#include <string>

#include "runtime/run/train.h"

namespace pp {

// {"step":1,"loss":5.54,"grad_norm":1.9,"lr":0.0003,"step_seconds":0.81,
//  "tokens_per_second":2528,"peak_bytes":[...]} and a newline; "loss_scale":65536,"skipped":false
// and "val_loss":5.6 behind all that where there are such. A norm that is no number is null.
std::string ToJson(const StepReport& report);

// "step 12/200  loss 2.3456  norm 1.23  lr 0.0003  12345 tok/s  0:43 left" and a newline.
// `seconds` is the mean over the steps so far.
std::string ToLine(const StepReport& report, double seconds);

}  // namespace pp
