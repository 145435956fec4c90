// Plans and orders to start from.
#pragma once

#include <vector>

#include "compiler/search/problem.h"

namespace pp::search {

// One micro-batch after the other, ascending or in the given order of all: the plan that needs the
// least memory. `limit` is what each device then takes.
struct Thrifty {
  Plan plan;
  std::vector<int64_t> limit;
};
Thrifty OneByOne(const Problem& problem, std::vector<int> order = {});

// All micro-batches, in an order that the sums of all gradients keep; empty: there is none.
std::vector<int> OrderOfSums(const Problem& problem, const Plan& plan);

// Whether `plan` runs the same cells as `other`, and sums their gradients in the same order. (Then
// it may replace it.)
bool SameWork(const Problem& problem, const Plan& plan, const Plan& other);

// The same orders with every activation kept, and with every activation dropped and
// recomputed just before its backward.
Plan KeepAll(const Plan& plan);
Plan DropAll(const Plan& plan);

// The plan's orders with the micro-batches of a device that has several stages in groups of
// `size`, taken from `order`: each group goes through all its stages before the next one starts.
Plan InGroups(const Problem& problem, const Plan& plan, const std::vector<int>& order, int size);

}  // namespace pp::search
