// Makes a plan that fits faster, never slower, by moves that need no trial:
//
//   keep      C1 .. R1 B1  =>  F1 .. B1     where the activation fits from C1 to R1; a task
//                                           less delays nobody
//   prepose   a task goes into an earlier idle gap that it fits
//   postpone  a forward or recompute goes into a later gap of the latest timeline: nothing
//             is late, and the memory in between is free for `keep`
//
// `keep` and `prepose` are what Mario's passes remove-redundancy and prepose-forward
// (Liu et al., 2025) become when memory is counted cell by cell. The two timelines are the
// forward-backward improvement of resource-constrained project scheduling (Tormos and
// Lova, 2001).
#pragma once

#include "compiler/search/clock.h"
#include "compiler/search/problem.h"

namespace pp::search {

// When to recompute the clock: after each device's moves, which gives the next one more gaps, or
// after all of them, which is much faster with many devices.
enum class Retime { kEachDevice, kEachRound };

struct PolishOptions {
  enum { kKeep, kPrepose } first = kKeep;
  Retime retime = Retime::kEachDevice;
  int rounds = 12;
  int threads = 1;  // kEachRound: that share the devices; the plan is the same
};

// Thorough for a few thousand tasks, short for more.
PolishOptions PolishFor(const Problem& problem);

// The makespan. REQUIRES: the plan fits, and `clock` has just timed it.
double Polish(const Problem& problem, const PolishOptions& options, Clock& clock, Plan& plan);

}  // namespace pp::search
