// Which sequences micro-batches have, with files whose tokens are their own indices.
#include "runtime/files/batches.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace pp {
namespace {

constexpr int kLength = 4;

// A text of exactly `sequences` sequences, the last of which lacks `missing` targets: token t is 1
// + t modulo 251, which is not a multiple of a sequence's length, so that no two of them are the
// same.
Dataset MakeData(int sequences, int missing = 0) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("batches_test." + std::to_string(getpid()) + ".txt"))
                               .string();
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i <= sequences * kLength - missing; ++i) out.put(static_cast<char>(1 + i % 251));
  out.close();
  auto data = Dataset::Open({path}, {.vocab_size = 256, .sequence_length = kLength});
  std::filesystem::remove(path);  // it is mapped
  REQUIRE(data.ok());
  REQUIRE(data->sequences() == sequences);
  return std::move(*data);
}

std::vector<int32_t> Sequence(int64_t n, int shift) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kLength; ++i)
    tokens.push_back(static_cast<int32_t>(1 + (n * kLength + i + shift) % 251));
  return tokens;
}

struct Sequences {
  std::vector<std::vector<int32_t>> inputs, targets;
};

Sequences Read(const Batches& batches, const Batches::Args& args, int64_t step, int replica,
               int micro) {
  std::vector<int32_t> inputs(args.micro_batch_size * kLength), targets = inputs;
  REQUIRE(batches.Inputs(step, replica, micro, inputs.data()).ok());
  REQUIRE(batches.Targets(step, replica, micro, targets.data()).ok());
  Sequences sequences;
  for (int b = 0; b < args.micro_batch_size; ++b) {
    sequences.inputs.emplace_back(inputs.begin() + b * kLength, inputs.begin() + (b + 1) * kLength);
    sequences.targets.emplace_back(targets.begin() + b * kLength,
                                   targets.begin() + (b + 1) * kLength);
  }
  return sequences;
}

// What the file's targets are in the order in which steps take them: of each step the indices of
// those that count, which are their tokens as long as there are at most 251.
std::vector<std::vector<int>> TargetsOf(const Batches& batches, const Batches::Args& args,
                                        int64_t steps) {
  std::vector<std::vector<int>> all(steps);
  for (int64_t step = 1; step <= steps; ++step) {
    for (int r = 0; r < args.replicas; ++r)
      for (int m = 0; m < args.microbatches; ++m)
        for (const auto& sequence : Read(batches, args, step, r, m).targets)
          for (const int32_t target : sequence)
            if (target >= 0) all[step - 1].push_back(target - 1);
    CHECK(*batches.Tokens(step) == static_cast<int64_t>(all[step - 1].size()));
    CHECK(*batches.PerToken(step) == 1.0 / static_cast<double>(all[step - 1].size()));
  }
  return all;
}

}  // namespace

TEST_CASE("sequence b of micro-batch m of replica r in step k is number ((k R + r) M + m) B + b") {
  const Dataset data = MakeData(40);
  const Batches::Args args{.dataset = &data,
                           .replicas = 2,
                           .microbatches = 3,
                           .micro_batch_size = 2,
                           .sequence_length = kLength};
  const Batches batches(args);
  int64_t next = 0;
  for (int64_t k = 0; k < 8; ++k)
    for (int r = 0; r < 2; ++r)
      for (int m = 0; m < 3; ++m) {
        INFO("k " << k << " r " << r << " m " << m);
        CHECK(batches.FirstSequence(k + 1, r, m) == next);
        const Sequences read = Read(batches, args, k + 1, r, m);
        for (int b = 0; b < 2; ++b, ++next) {
          CHECK(next == ((k * 2 + r) * 3 + m) * 2 + b);
          CHECK(read.inputs[b] == Sequence(next % 40, 0));  // the file starts again
          CHECK(read.targets[b] == Sequence(next % 40, 1));
        }
      }
  CHECK(*batches.Tokens(1) == 2 * 3 * 2 * kLength);
  CHECK(*batches.Tokens(1000) == 2 * 3 * 2 * kLength);
}

TEST_CASE("an epoch has every sequence of the file once, in order, and nothing else that counts") {
  for (const int sequences : {1, 11, 12, 13, 24, 35}) {
    INFO(sequences << " sequences");
    const Dataset data = MakeData(sequences);
    const Batches::Args args{.dataset = &data,
                             .replicas = 2,
                             .microbatches = 3,
                             .micro_batch_size = 2,
                             .sequence_length = kLength,
                             .epochs = 2};
    const Batches batches(args);
    const int64_t per_epoch = (sequences + 11) / 12;
    REQUIRE(batches.Steps() == 2 * per_epoch);
    int64_t number = 0;  // in the training; that of the file is `next`
    for (int64_t step = 1; step <= batches.Steps(); ++step) {
      int64_t next = (step - 1) % per_epoch * 12, tokens = 0;
      for (int r = 0; r < 2; ++r)
        for (int m = 0; m < 3; ++m) {
          CHECK(batches.FirstSequence(step, r, m) == number);  // dropout continues to count
          const Sequences read = Read(batches, args, step, r, m);
          for (int b = 0; b < 2; ++b, ++number, ++next) {
            if (next < sequences) {
              CHECK(read.inputs[b] == Sequence(next, 0));
              CHECK(read.targets[b] == Sequence(next, 1));
              tokens += kLength;
            } else {
              CHECK(read.inputs[b] == std::vector<int32_t>(kLength, 0));
              CHECK(read.targets[b] == std::vector<int32_t>(kLength, -1));
            }
          }
        }
      CHECK(*batches.Tokens(step) == tokens);
      CHECK(tokens > 0);
      CHECK((step % per_epoch != 0 || next >= sequences));
    }
  }
}

TEST_CASE("an epoch begins with the file's first sequence in a step of its own") {
  const Dataset data = MakeData(5);
  const Batches::Args args{
      .dataset = &data, .microbatches = 4, .sequence_length = kLength, .epochs = 3};
  const Batches batches(args);
  CHECK(batches.Steps() == 6);
  for (const int64_t step : {1, 3, 5}) {
    CHECK(Read(batches, args, step, 0, 0).inputs[0] == Sequence(0, 0));
    CHECK(*batches.Tokens(step) == 4 * kLength);
    CHECK(Read(batches, args, step + 1, 0, 0).inputs[0] == Sequence(4, 0));
    CHECK(*batches.Tokens(step + 1) == kLength);
  }
}

TEST_CASE("every target of the file counts once in a pass, whatever the batches") {
  for (const int missing : {0, 1, 3})
    for (const int sequences : {1, 2, 5, 12, 13}) {
      const Dataset data = MakeData(sequences, missing);
      const int targets = sequences * kLength - missing;
      for (const auto& [replicas, micros, size] :
           {std::array{1, 1, 1}, {1, 1, 4}, {2, 1, 3}, {1, 5, 1}, {2, 3, 2}}) {
        INFO(sequences << " sequences, " << missing << " missing, " << replicas << " x " << micros
                       << " x " << size);
        Batches::Args args{.dataset = &data,
                           .replicas = replicas,
                           .microbatches = micros,
                           .micro_batch_size = size,
                           .sequence_length = kLength};
        const auto in_order = [&](const Batches::Args& a, int64_t steps) {
          std::vector<int> all;
          for (const auto& step : TargetsOf(Batches(a), a, steps))
            all.insert(all.end(), step.begin(), step.end());
          return all;
        };
        std::vector<int> passes;
        for (int i = 0; i < 3 * targets; ++i) passes.push_back(1 + i % targets);
        // By epochs, by steps, and of a validation, which repeats.
        args.epochs = 3;
        CHECK(in_order(args, Batches(args).Steps()) == passes);
        args.epochs = 0;
        const int64_t each = Batches(args).PerStep(1);
        const std::vector<int> steps = in_order(args, (3 * sequences + each - 1) / each);
        REQUIRE(steps.size() >= passes.size());
        CHECK(std::equal(passes.begin(), passes.end(), steps.begin()));
        args.repeat_after = (sequences + each - 1) / each;
        CHECK(in_order(args, 3 * args.repeat_after) == passes);
      }
    }
}

TEST_CASE("a training goes on at its position, with these batches or with others") {
  const Dataset data = MakeData(7, 2);
  const int targets = 7 * kLength - 2;
  for (const int64_t epochs : {0, 3})
    for (const auto& [micros, others] : {std::pair{2, 3}, {3, 2}, {4, 1}, {1, 9}, {2, 2}}) {
      Batches::Args first{
          .dataset = &data, .microbatches = micros, .sequence_length = kLength, .epochs = epochs};
      const int64_t steps = epochs > 0 ? Batches(first).Steps() : 21;
      for (int64_t stop = 0; stop < steps; ++stop) {
        INFO(epochs << " epochs, after " << stop << " steps of " << micros << ", now " << others);
        Batches::Args next = first;
        next.from = Batches(first).Before(stop + 1);
        CHECK(next.from.sequence < 7);
        next.microbatches = others;
        const int64_t rest = epochs > 0 ? Batches(next).Steps() : 30;
        std::vector<int> all;
        for (const auto& step : TargetsOf(Batches(first), first, stop))
          all.insert(all.end(), step.begin(), step.end());
        for (const auto& step : TargetsOf(Batches(next), next, rest))
          all.insert(all.end(), step.begin(), step.end());
        for (size_t i = 0; i < all.size(); ++i)
          REQUIRE(all[i] == 1 + static_cast<int>(i) % targets);
        if (epochs > 0) CHECK(all.size() == 3 * static_cast<size_t>(targets));
        // With the same batches, the same steps.
        if (micros == others && epochs > 0) CHECK(stop + rest == steps);
      }
    }
}

// Step by step, as the head of batches.h says it.
TEST_CASE("steps of several sizes, and the smallest that holds the rest of an epoch") {
  const Dataset data = MakeData(37);
  const BatchRamp ramp{{{2, 0}, {5, 3}, {1, 4}, {3, 11}}};
  const std::vector<int32_t> sizes{1, 2, 3, 5};
  for (const int replicas : {1, 2})
    for (const int size : {1, 3})
      for (const int64_t epochs : {0, 2})
        for (const int64_t before : {0, 1, 3, 4, 20}) {
          INFO(replicas << " replicas, " << size << " sequences, " << epochs << " epochs, after "
                        << before);
          const Batches::Args args{.dataset = &data,
                                   .replicas = replicas,
                                   .microbatches = 5,
                                   .micro_batch_size = size,
                                   .sequence_length = kLength,
                                   .ramp = ramp,
                                   .sizes = sizes,
                                   .steps_before = before,
                                   .epochs = epochs,
                                   .from = {0, 7},
                                   .sequences_before = 100};
          const Batches batches(args);
          int64_t pass = 0, sequence = 7, counted = 100, step = 1;
          for (; epochs > 0 ? pass < epochs : step <= 30; ++step) {
            int micros = 0;
            for (const auto& stretch : ramp.stretches)
              if (before + step > stretch.from) micros = stretch.microbatches;
            const int whole = micros;
            if (epochs > 0)
              for (const int32_t smaller : {3, 2, 1})
                if (smaller < micros && replicas * smaller * size >= 37 - sequence)
                  micros = smaller;
            REQUIRE(batches.Microbatches(step) == micros);
            CHECK(batches.Before(step).pass == pass);
            CHECK(batches.Before(step).sequence == sequence);
            CHECK(batches.CountedBefore(step) == counted);
            for (int r = 0; r < replicas; ++r)
              for (int m = 0; m < micros; ++m) {
                const int64_t first = (r * micros + m) * size;
                CHECK(batches.FirstSequence(step, r, m) == counted + first);
                const Sequences read = Read(batches, args, step, r, m);
                for (int b = 0; b < size; ++b) {
                  const int64_t n = sequence + first + b;
                  CHECK(read.targets[b] == (epochs > 0 && n >= 37
                                                ? std::vector<int32_t>(kLength, -1)
                                                : Sequence(n % 37, 1)));
                }
              }
            counted += replicas * whole * size;
            sequence += replicas * micros * size;
            if (sequence < 37) continue;
            pass += epochs > 0 ? 1 : sequence / 37;
            sequence = epochs > 0 ? 0 : sequence % 37;
          }
          if (epochs > 0) CHECK(batches.Steps() == step - 1);
        }
}

}  // namespace pp
