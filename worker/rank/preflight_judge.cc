#include "worker/rank/preflight_judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace sft::rank {
namespace {

constexpr double kSlow = 0.6, kBroken = 0.2;
// A message that takes this many times as long as between other nodes, and longer than that.
constexpr double kLate = 5, kLateUs = 300;
constexpr int64_t kClockUs = 5'000'000;
constexpr size_t kMostPairs = 8;  // nodes all of whose pairs are measured
constexpr size_t kNamesShown = 4;

bool Sane(double value) { return std::isfinite(value) && value > 0; }

// A rate beside what was expected of it.
struct Ratio {
  double ratio = 1;
  double expected = 0;
  const char* of = "";  // whose the expectation is
};

// The worse of both comparisons; 0 for nonsense. An expectation of 0 is none.
Ratio Compare(double value, double others, const char* whose, double past) {
  if (!Sane(value)) return {.ratio = 0, .expected = Sane(others) ? others : past, .of = whose};
  Ratio worst;
  const auto look = [&](double expected, const char* of) {
    if (Sane(expected) && value / expected < worst.ratio) worst = {value / expected, expected, of};
  };
  look(others, whose);
  look(past, "its own earlier runs");
  return worst;
}

class Judge {
 public:
  explicit Judge(const PreflightFigures& figures) : figures_(figures) {}

  std::vector<PreflightFinding> Run() {
    Products();
    Inside();
    Links();
    Latency();
    Clocks();
    Versions();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const auto& a, const auto& b) { return a.broken > b.broken; });
    return std::move(findings_);
  }

 private:
  void Add(const Ratio& found, double value, const std::string& what, const char* unit,
           size_t blamed) {
    if (found.ratio >= kSlow) return;
    PreflightFinding finding;
    finding.broken = found.ratio < kBroken;
    if (finding.broken) finding.blamed = static_cast<int>(blamed);
    finding.text = fmt::format("{} {}: {:.3g} {}", what, finding.broken ? "is broken" : "is slow",
                               value, unit);
    if (Sane(found.expected)) {
      finding.text += fmt::format(", {:.0f} % of the {:.3g} {} of {}",
                                  Sane(value) ? 100 * value / found.expected : 0.0, found.expected,
                                  unit, found.of);
    }
    findings_.push_back(std::move(finding));
  }

  const PreflightNode& node(size_t index) const { return figures_.nodes[index]; }

  void Products() {
    std::vector<double> all;
    for (const PreflightNode& each : figures_.nodes) {
      std::copy_if(each.products.begin(), each.products.end(), std::back_inserter(all), Sane);
    }
    const double median = all.size() > 1 ? UpperMedian(all) : 0;
    for (size_t n = 0; n < figures_.nodes.size(); ++n) {
      for (size_t gpu = 0; gpu < node(n).products.size(); ++gpu) {
        const double value = node(n).products[gpu];
        Add(Compare(value, median, "the ranks' median", node(n).past.product), value,
            fmt::format("node {}: GPU {} of the job there", node(n).name, gpu), "TFLOP/s", n);
      }
    }
  }

  void Inside() {
    std::vector<double> all;
    for (const PreflightNode& each : figures_.nodes) {
      std::copy_if(each.inside.begin(), each.inside.end(), std::back_inserter(all), Sane);
    }
    const double median = all.size() > 1 ? UpperMedian(all) : 0;
    for (size_t n = 0; n < figures_.nodes.size(); ++n) {
      for (const double value : node(n).inside) {
        Add(Compare(value, median, "the nodes' median", node(n).past.inside), value,
            fmt::format("node {}: the network between its GPUs", node(n).name), "GB/s a GPU", n);
      }
    }
  }

  // Rates of the links that have node `n`, or of those that have not.
  std::vector<double> RatesOf(size_t n, bool with) const {
    std::vector<double> rates;
    for (const PreflightLink& link : figures_.links) {
      const bool has = link.a == n || link.b == n;
      if (has == with)
        rates.push_back(Sane(link.gigabytes_per_second) ? link.gigabytes_per_second : 0);
    }
    return rates;
  }

  void Links() {
    std::vector<bool> named(figures_.nodes.size());
    for (size_t n = 0; n < figures_.nodes.size(); ++n) {
      const std::vector<double> own = RatesOf(n, true), others = RatesOf(n, false);
      // With one link alone it cannot be told whose fault it is.
      if (own.size() < 2 || others.empty()) continue;
      const double value = UpperMedian(own);
      const Ratio found = Compare(value, UpperMedian(others), "the other nodes", 0);
      if (found.ratio >= kSlow) continue;
      named[n] = true;
      Add(found, value, fmt::format("node {}: its network to other nodes", node(n).name),
          "GB/s a rank", n);
    }
    for (const PreflightLink& link : figures_.links) {
      if (!named[link.a] && !named[link.b]) OneLink(link);
    }
  }

  void OneLink(const PreflightLink& link) {
    std::vector<double> others;
    for (const PreflightLink& each : figures_.links) {
      if (&each != &link && Sane(each.gigabytes_per_second)) {
        others.push_back(each.gigabytes_per_second);
      }
    }
    const double value = link.gigabytes_per_second, median = UpperMedian(others);
    const Ratio of_a = Compare(value, median, "the other links", node(link.a).past.between);
    const Ratio of_b = Compare(value, median, "the other links", node(link.b).past.between);
    // Whose own past was better is the one that has changed.
    const bool a_is_worse = of_a.ratio < of_b.ratio;
    Add(a_is_worse ? of_a : of_b, value,
        fmt::format("the network between nodes {} and {}", node(link.a).name, node(link.b).name),
        "GB/s a rank", a_is_worse ? link.a : link.b);
  }

  void Latency() {
    std::vector<double> all;
    for (const PreflightLink& link : figures_.links) {
      if (Sane(link.latency_us)) all.push_back(link.latency_us);
    }
    if (all.size() < 2) return;
    std::sort(all.begin(), all.end());
    const double median = all[(all.size() - 1) / 2];  // of two the better one
    for (const PreflightLink& link : figures_.links) {
      if (link.latency_us < std::max(kLateUs, kLate * median)) continue;
      findings_.push_back(
          {.text = fmt::format("the network between nodes {} and {} is late: {:.0f} us for the "
                               "smallest message, {:.0f} us between the others",
                               node(link.a).name, node(link.b).name, link.latency_us, median)});
    }
  }

  void Clocks() {
    std::vector<int64_t> all;
    for (const PreflightNode& each : figures_.nodes) all.push_back(each.wall_us);
    std::sort(all.begin(), all.end());
    if (all.empty()) return;
    const int64_t median = all[(all.size() - 1) / 2];
    for (const PreflightNode& each : figures_.nodes) {
      const int64_t apart = each.wall_us - median;
      if (std::abs(apart) < kClockUs) continue;
      findings_.push_back(
          {.text = fmt::format("node {}: its clock is {:.0f} s {} that of the other nodes",
                               each.name, std::abs(static_cast<double>(apart)) / 1e6,
                               apart > 0 ? "ahead of" : "behind")});
    }
  }

  void Versions() {
    std::map<std::string, std::vector<std::string>> nodes;  // by their versions
    for (const PreflightNode& each : figures_.nodes) nodes[each.versions].push_back(each.name);
    if (nodes.size() < 2) return;
    const auto most = std::max_element(
        nodes.begin(), nodes.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    for (const auto& [versions, names] : nodes) {
      if (versions == most->first) continue;
      const size_t shown = std::min(names.size(), kNamesShown);
      findings_.push_back(
          {.text = fmt::format(
               "node{} {}{}: {}; the others: {}", names.size() > 1 ? "s" : "",
               fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
               names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "",
               versions, most->first)});
    }
  }

  const PreflightFigures& figures_;
  std::vector<PreflightFinding> findings_;
};

}  // namespace

double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<PreflightFinding> JudgePreflight(const PreflightFigures& figures) {
  return Judge(figures).Run();
}

std::vector<std::vector<std::pair<size_t, size_t>>> PreflightRounds(size_t nodes) {
  std::vector<std::vector<std::pair<size_t, size_t>>> rounds;
  if (nodes < 2) return rounds;
  if (nodes > kMostPairs) {
    rounds.resize(nodes % 2 == 0 ? 2 : 3);
    for (size_t n = 0; n + 1 < nodes; ++n) rounds[n % 2].emplace_back(n, n + 1);
    rounds.back().emplace_back(0, nodes - 1);
    return rounds;
  }
  // The first stays, the others go round; with an odd number one pauses in each round.
  const size_t seats = nodes + nodes % 2;
  for (size_t round = 0; round + 1 < seats; ++round) {
    auto& pairs = rounds.emplace_back();
    const auto seat = [&](size_t place) {
      return place == 0 ? size_t{0} : 1 + (place - 1 + round) % (seats - 1);
    };
    for (size_t i = 0; i < seats / 2; ++i) {
      const size_t one = seat(i), other = seat(seats - 1 - i);
      if (std::max(one, other) < nodes) {
        pairs.emplace_back(std::min(one, other), std::max(one, other));
      }
    }
  }
  return rounds;
}

}  // namespace sft::rank
