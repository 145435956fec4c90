// Batches of data with target bits, in the data's order and shuffled, against loops that are as
// plain as can be.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "runtime/files/batches.h"
#include "runtime/files/permutation.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"

namespace pp {
namespace {

constexpr int kLength = 8;

// Several files, of which most long stretches have no target.
struct Data {
  explicit Data(int tokens, unsigned seed = 1) {
    std::mt19937 engine(seed);
    for (int i = 0; i < tokens; ++i) {
      all.push_back(1 + i);
      counts.push_back(i / 70 % 3 == 0 && engine() % 3 != 0);
    }
    counts[tokens / 2] = true;
    for (int first = 0, number = 0; first < tokens; first += 300, ++number) {
      const int end = std::min(first + 300, tokens);
      std::ofstream(folder / std::to_string(number), std::ios::binary)
          << std::string(TokenFileBytes({all.begin() + first, all.begin() + end}, 4, {0},
                                        {counts.begin() + first, counts.begin() + end}));
      paths.push_back(folder / std::to_string(number));
    }
    auto opened = Dataset::Open(paths, {1 << 20, kLength});
    REQUIRE(opened.ok());
    dataset = std::make_unique<Dataset>(std::move(*opened));
  }

  // Of a sequence, what a step should see.
  int32_t Input(int64_t n, int i) const {
    const int64_t at = n * kLength + i;
    return at + 1 < std::ssize(all) ? static_cast<int32_t>(all[at]) : 0;
  }
  int32_t Target(int64_t n, int i) const {
    const int64_t at = n * kLength + i + 1;
    return at < std::ssize(all) && counts[at] ? static_cast<int32_t>(all[at]) : -1;
  }
  bool IsThere(int64_t n, int i) const { return n * kLength + i + 1 < std::ssize(all); }

  Folder folder;
  std::vector<uint32_t> all;
  std::vector<bool> counts;
  std::vector<std::string> paths;
  std::unique_ptr<Dataset> dataset;
};

// Of each step its sequences, -1: none; and the position before it.
struct Plan {
  std::vector<std::vector<int64_t>> steps;
  std::vector<Position> before;
};

Plan PlanOf(const Batches::Args& args, int64_t per_step, int64_t steps) {
  Plan plan;
  Position at = args.from;
  const int64_t all = args.dataset->sequences();
  for (int64_t step = 0; step < steps; ++step) {
    plan.before.push_back(at);
    std::vector<int64_t>& sequences = plan.steps.emplace_back();
    for (int64_t i = 0; i < per_step; ++i) {
      if (at.sequence == all && args.epochs > 0) {
        sequences.push_back(-1);
        continue;
      }
      sequences.push_back(args.shuffle ? Permutation(*args.shuffle, at.pass, all).At(at.sequence)
                                       : at.sequence);
      ++at.sequence;
      if (at.sequence == all && args.epochs == 0) at = {at.pass + 1, 0};
    }
    if (at.sequence == all) at = {at.pass + 1, 0};
  }
  return plan;
}

void CheckSequences(const Batches& batches, const Batches::Args& args, const Data& data,
                    int64_t step, const std::vector<int64_t>& sequences) {
  std::vector<int32_t> inputs(args.micro_batch_size * kLength), targets = inputs;
  size_t next = 0;
  for (int r = 0; r < args.replicas; ++r)
    for (int m = 0; m < args.microbatches; ++m) {
      REQUIRE(batches.Inputs(step, r, m, inputs.data()).ok());
      REQUIRE(batches.Targets(step, r, m, targets.data()).ok());
      for (int b = 0; b < args.micro_batch_size; ++b, ++next)
        for (int i = 0; i < kLength; ++i) {
          const int64_t n = sequences[next];
          REQUIRE(inputs[b * kLength + i] == (n < 0 ? 0 : data.Input(n, i)));
          REQUIRE(targets[b * kLength + i] == (n < 0 ? -1 : data.Target(n, i)));
        }
    }
}

// All that batches say of their steps; returns how many are empty.
int64_t Check(const Batches::Args& args, const Data& data, int64_t steps) {
  const Batches batches(args), others(args);
  const Plan plan = PlanOf(args, batches.PerStep(1), steps);
  std::vector<int64_t> empty_before;
  int64_t empty = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    INFO("step " << step);
    CheckSequences(batches, args, data, step, plan.steps[step - 1]);
    int64_t tokens = 0, positions = 0;
    for (const int64_t n : plan.steps[step - 1])
      for (int i = 0; n >= 0 && i < kLength; ++i) {
        tokens += data.Target(n, i) >= 0 ? 1 : 0;
        positions += data.IsThere(n, i) ? 1 : 0;
      }
    REQUIRE(*batches.Tokens(step) == tokens);
    REQUIRE(batches.Positions(step) == positions);
    REQUIRE(*batches.PerToken(step) == (tokens == 0 ? 0 : 1.0 / static_cast<double>(tokens)));
    REQUIRE(*batches.EmptySteps(step) == empty);
    CHECK(batches.Before(step).pass == plan.before[step - 1].pass);
    CHECK(batches.Before(step).sequence == plan.before[step - 1].sequence);
    empty_before.push_back(empty);
    empty += tokens == 0 ? 1 : 0;
  }
  // In any order, also of those who have not been asked before.
  std::mt19937 engine(1);
  for (int i = 0; i < 50; ++i) {
    const int64_t step = 1 + static_cast<int64_t>(engine() % steps);
    REQUIRE(*others.EmptySteps(step) == empty_before[step - 1]);
    REQUIRE(*batches.Tokens(step) == *others.Tokens(step));
  }
  return empty;
}

TEST_CASE("steps have the targets that count, by steps and by epochs, in order and shuffled") {
  const Data data(1000);  // 125 sequences, the last of which lacks a target
  REQUIRE(data.dataset->sequences() == 125);
  REQUIRE(data.dataset->missing() == 1);
  int64_t empty = 0;
  for (const auto& [replicas, micros, size] :
       {std::array{1, 1, 1}, {1, 2, 3}, {2, 1, 2}, {2, 3, 2}, {1, 1, 200}})
    for (const int64_t epochs : {0, 3})
      for (const std::optional<uint64_t> shuffle : {std::optional<uint64_t>(), {5}, {6}}) {
        const Batches::Args args{.dataset = data.dataset.get(),
                                 .replicas = replicas,
                                 .microbatches = micros,
                                 .micro_batch_size = size,
                                 .sequence_length = kLength,
                                 .epochs = epochs,
                                 .shuffle = shuffle};
        const int64_t each = Batches(args).PerStep(1);
        INFO(each << " sequences a step, " << epochs << " epochs" << (shuffle ? ", shuffled" : ""));
        const int64_t steps = epochs > 0 ? Batches(args).Steps() : 3 * 125 / each + 2;
        if (epochs > 0) CHECK(steps == 3 * ((125 + each - 1) / each));
        empty += Check(args, data, steps);
      }
  CHECK(empty > 100);
}

TEST_CASE("a shuffled training goes on where it was") {
  const Data data(333);
  for (const int64_t epochs : {0, 3})
    for (const auto& [micros, others] : {std::pair{4, 4}, {4, 3}, {3, 50}}) {
      Batches::Args args{.dataset = data.dataset.get(),
                         .microbatches = micros,
                         .sequence_length = kLength,
                         .epochs = epochs,
                         .shuffle = 3};
      const int64_t stop = 1 + 42 / micros;  // within a pass, or in the next one
      const Plan first = PlanOf(args, micros, stop + 1);
      Batches::Args next = args;
      next.from = Batches(args).Before(stop + 1);
      next.microbatches = others;
      Check(next, data, 9);
      // No sequence comes twice in the pass, nor is one left out.
      std::vector<int> seen(data.dataset->sequences());
      for (int64_t step = 0; step < stop; ++step)
        for (const int64_t n : first.steps[step])
          if (n >= 0) ++seen[n];
      const Batches batches(next);
      std::vector<int32_t> inputs(kLength);
      for (int64_t step = 1; next.from.pass == batches.Before(step).pass; ++step)
        for (int m = 0; m < others; ++m) {
          REQUIRE(batches.Inputs(step, 0, m, inputs.data()).ok());
          const int64_t left = data.dataset->sequences() - batches.Before(step).sequence;
          if (m < left) ++seen[(inputs[0] - 1) / kLength];
        }
      const auto passes = static_cast<int>(next.from.pass + 1);
      CHECK(seen == std::vector<int>(seen.size(), passes));
    }
}

TEST_CASE("the order is the same for every layout") {
  const Data data(1000);
  const auto order = [&](int replicas, int micros, int size) {
    const Batches::Args args{.dataset = data.dataset.get(),
                             .replicas = replicas,
                             .microbatches = micros,
                             .micro_batch_size = size,
                             .sequence_length = kLength,
                             .shuffle = 4};
    const Batches batches(args);
    std::vector<int32_t> firsts, inputs(size * kLength);
    for (int64_t step = 1; step <= 288 / batches.PerStep(1); ++step)
      for (int r = 0; r < replicas; ++r)
        for (int m = 0; m < micros; ++m) {
          REQUIRE(batches.Inputs(step, r, m, inputs.data()).ok());
          for (int b = 0; b < size; ++b) firsts.push_back(inputs[b * kLength]);
        }
    return firsts;
  };
  const std::vector<int32_t> one = order(1, 1, 1);
  CHECK(order(2, 3, 4) == one);
  CHECK(order(3, 8, 1) == one);
  CHECK(order(1, 1, 24) == one);
}

TEST_CASE("a validation counts the targets of its batches") {
  const Data data(1000);
  const Batches::Args args{.dataset = data.dataset.get(),
                           .microbatches = 10,
                           .sequence_length = kLength,
                           .repeat_after = 4};
  const Batches batches(args);
  int64_t tokens = 0, expected = 0;
  for (int64_t step = 1; step <= 4; ++step) tokens += *batches.Tokens(step);
  for (int64_t n = 0; n < 40; ++n)
    for (int i = 0; i < kLength; ++i) expected += data.Target(n, i) >= 0 ? 1 : 0;
  CHECK(tokens == expected);
  CHECK(*batches.Tokens(5) == *batches.Tokens(1));
}

TEST_CASE("target bits that cannot be read are an error, and what is known stays known") {
  const Data data(1000);
  const Batches::Args args{
      .dataset = data.dataset.get(), .microbatches = 5, .sequence_length = kLength};
  const Batches batches(args);
  const int64_t first = *batches.Tokens(1);
  REQUIRE(batches.EmptySteps(2).ok());
  for (const std::string& path : data.paths) std::filesystem::resize_file(path, 64);
  CHECK(*batches.Tokens(1) == first);
  CHECK(batches.EmptySteps(2).ok());
  CHECK(batches.Tokens(2).status().code() == Code::kFailed);
  CHECK(batches.PerToken(2).status().code() == Code::kFailed);
  CHECK(batches.EmptySteps(3).status().code() == Code::kFailed);
  CHECK(batches.Positions(2) == 5 * kLength);
}

TEST_CASE("threads that are at different steps get the same answers") {
  const Data data(5000);
  const Batches::Args args{
      .dataset = data.dataset.get(), .microbatches = 2, .sequence_length = kLength, .shuffle = 1};
  const Batches batches(args), alone(args);
  std::vector<int64_t> tokens, empty;
  for (int64_t step = 1; step <= 300; ++step) {
    tokens.push_back(*alone.Tokens(step));
    empty.push_back(*alone.EmptySteps(step));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t step = 1 + 3 * t; step <= 300; ++step) {
        wrong[t] += *batches.Tokens(step) == tokens[step - 1] ? 0 : 1;
        wrong[t] += *batches.EmptySteps(step) == empty[step - 1] ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

}  // namespace
}  // namespace pp
