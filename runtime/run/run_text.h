// The texts of a run: for each step a line for people and a JSON object for programs; and for its
// end.
#pragma once

#include <string>

#include "runtime/run/train.h"
#include "schema/program.h"

namespace pp {

// What is trained, and how, before the first step: "gpt2 with 10752 parameters: 1f1b on 2 devices,
// 4 micro-batches of 1 x 16 tokens; 2 ranks, 64 tokens a step, at most 1.2 MiB a rank", a newline.
// REQUIRES: all lists, and a job.
std::string HeaderText(const Program& program);

// {"step":1,"loss":5.54,"grad_norm":1.9,"lr":0.0003,"step_seconds":0.81,
//  "tokens_per_second":2528,"peak_bytes":[...]} and a newline; "loss_scale":65536,"skipped":false
// and "val_loss":5.6 after all that if present. A norm that is not finite is null, and so is the
// loss of a step without targets.
std::string ToJson(const StepReport& report);

// "step 12/200  loss 2.3456  norm 1.23  lr 0.0003  12345 tok/s  0:43 left" and a newline.
// `seconds` is the mean over the steps so far.
std::string ToLine(const StepReport& report, double seconds);

// How the compute threads spent their time, and for messages and reductions how long they took and
// how much of that nobody waited for: one line each.
std::string SummaryText(const TrainReport& report);

// "sample: First|Citizen" and a newline: before "|" the data's tokens, after it the model's. Bytes
// as text, with control characters written out; other tokens as numbers. Empty without a sample.
std::string SampleText(const TrainReport& report);

}  // namespace pp
