// That a shuffled order has every sequence once, and is one.
#include "runtime/files/permutation.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace pp {
namespace {

std::vector<int64_t> Order(uint64_t seed, int64_t pass, int64_t size) {
  const Permutation permutation(seed, pass, size);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back(permutation.At(i));
  return order;
}

bool HasEachOnce(const std::vector<int64_t>& order) {
  std::vector<bool> seen(order.size());
  for (const int64_t n : order) {
    if (n < 0 || n >= std::ssize(order) || seen[n]) return false;
    seen[n] = true;
  }
  return true;
}

TEST_CASE("every number comes once, for every size") {
  for (int64_t size = 1; size <= 300; ++size)
    for (int64_t pass = 0; pass < 5; ++pass) {
      INFO(size << ", pass " << pass);
      REQUIRE(HasEachOnce(Order(size, pass, size)));
    }
  for (const int64_t size : {1023, 1024, 1025, 65536, 65537, 1000003}) {
    INFO(size);
    REQUIRE(HasEachOnce(Order(1, 0, size)));
  }
}

TEST_CASE("numbers of any size are in range, and no two of neighbours are the same") {
  const int64_t size = (int64_t{1} << 50) + 12345;
  const Permutation permutation(7, 3, size);
  for (int64_t i = 0; i < 10000; ++i) {
    const int64_t n = permutation.At(i), last = permutation.At(size - 1 - i);
    REQUIRE((n >= 0 && n < size && last >= 0 && last < size && n != last));
  }
}

// It is in nobody's interest that this changes: a training that continues would see some sequences
// twice, and others never.
TEST_CASE("the order is the same on every machine and in every version") {
  CHECK(Order(1, 0, 10) == std::vector<int64_t>{9, 2, 5, 0, 8, 6, 7, 3, 4, 1});
  CHECK(Order(1, 1, 10) == std::vector<int64_t>{7, 6, 4, 9, 5, 3, 8, 2, 1, 0});
  CHECK(Permutation(123456789, 2, 1000000007).At(42) == 705209411);
}

TEST_CASE("another pass and another seed have another order") {
  for (const int64_t size : {20, 300, 5000}) {
    const std::vector<int64_t> one = Order(1, 0, size);
    CHECK(Order(1, 0, size) == one);
    for (uint64_t other = 1; other < 50; ++other) {
      CHECK(Order(1, static_cast<int64_t>(other), size) != one);
      CHECK(Order(1 + other, 0, size) != one);
      CHECK(Order(1 ^ other << 40, 0, size) != one);
    }
    // A pass is not that of another seed.
    CHECK(Order(1, 1, size) != Order(2, 0, size));
  }
}

// How far `counts` are from all the same, in standard deviations of chi-squared.
double Excess(const std::vector<int64_t>& counts, double expected) {
  double chi_squared = 0;
  for (const int64_t count : counts)
    chi_squared += std::pow(static_cast<double>(count) - expected, 2) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (chi_squared - freedom) / std::sqrt(2 * freedom);
}

TEST_CASE("a number comes at every place equally often, over passes and over seeds") {
  for (const int64_t size : {5, 6, 16, 37, 100})
    for (const bool by_pass : {true, false}) {
      INFO(size);
      constexpr int64_t kOrders = 40000;
      std::vector<int64_t> first(size), middle(size), next(size);
      for (int64_t k = 0; k < kOrders; ++k) {
        const Permutation order(by_pass ? 9 : k, by_pass ? k : 9, size);
        ++first[order.At(0)];
        ++middle[order.At(size / 2)];
        // From each place to the next one, a step of any length but 0.
        ++next[(order.At(1) - order.At(0) + size) % size];
      }
      const double expected = static_cast<double>(kOrders) / static_cast<double>(size);
      CHECK(std::abs(Excess(first, expected)) < 5);
      CHECK(std::abs(Excess(middle, expected)) < 5);
      CHECK(next[0] == 0);
      next.erase(next.begin());
      CHECK(std::abs(Excess(next, static_cast<double>(kOrders) / static_cast<double>(size - 1))) <
            5);
    }
}

TEST_CASE("each part of one order has numbers of all parts alike") {
  constexpr int64_t kSize = 100000, kParts = 20;
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<int64_t> counts(kParts * kParts);
    const std::vector<int64_t> order = Order(seed, 0, kSize);
    for (int64_t i = 0; i < kSize; ++i)
      ++counts[i * kParts / kSize * kParts + order[i] * kParts / kSize];
    CHECK(std::abs(Excess(counts, double{kSize} / counts.size())) < 5);
  }
}

}  // namespace
}  // namespace pp
