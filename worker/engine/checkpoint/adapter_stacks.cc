#include "worker/engine/checkpoint/adapter_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace sft::engine {
namespace {

constexpr std::string_view kExperts = "experts";  // the module
// In the order of the module's parameters.
constexpr std::string_view kStacks[] = {"gate_up_proj", "down_proj"};

struct Split {
  std::string module, parameter;
};
Split SplitName(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {"", std::string(name)};
  return {std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
}

bool EndsAtName(std::string_view module, std::string_view end) {
  if (!module.ends_with(end)) return false;
  return module.size() == end.size() || module[module.size() - end.size() - 1] == '.';
}

}  // namespace

std::string NameInLayer(std::string_view module) {
  size_t begin = 0;
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string_view part = module.substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      begin = std::min(end + 1, module.size());
    }
    at = end + 1;
  }
  return std::string(module.substr(begin));
}

std::map<std::string, std::string> WrapperNames(const std::set<std::string>& modules) {
  std::map<std::string, std::string> names;
  for (const std::string& stack : modules) {
    const auto [module, parameter] = SplitName(stack);
    const bool inner =
        parameter == kStacks[0] && modules.contains(fmt::format("{}.{}", module, kStacks[1]));
    names[stack] = module + (inner ? std::string(kBaseLayer) : "");
  }
  return names;
}

at::Tensor PeftSecondFactor(const at::Tensor& b, int64_t experts) {
  const int64_t rank = b.size(1), out = b.size(0) / experts;
  return b.view({experts, out, rank}).permute({1, 2, 0}).reshape({out, rank * experts});
}

at::Tensor OurSecondFactor(const at::Tensor& b, int64_t experts) {
  const int64_t rank = b.size(1) / experts, out = b.size(0);
  return b.reshape({out, rank, experts}).permute({2, 0, 1}).reshape({experts * out, rank});
}

std::string StackOf(std::string_view wrapper, const std::vector<std::string>& target_parameters) {
  const bool inner = wrapper.ends_with(kBaseLayer);
  if (inner) wrapper.remove_suffix(kBaseLayer.size());
  if (!EndsAtName(wrapper, kExperts)) return {};
  std::vector<std::string_view> adapted;
  for (const std::string_view stack : kStacks) {
    const bool named = std::any_of(
        target_parameters.begin(), target_parameters.end(), [&](const std::string& target) {
          return EndsAtName(fmt::format("{}.{}", wrapper, stack), target);
        });
    if (named) adapted.push_back(stack);
  }
  if (adapted.empty()) return {};
  if (inner && adapted.size() == 1) {
    throw std::invalid_argument(fmt::format(
        "{} is wrapped twice, but target_parameters names one parameter of it", wrapper));
  }
  return fmt::format("{}.{}", wrapper, inner ? adapted.front() : adapted.back());
}

}  // namespace sft::engine
