#include "common/spec/template_check.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

TEST(TemplateCheckTest, AnUnclosedBlockIsNamedWithItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\n{{ x", "{{ in line 2 of the template is never closed"},
      {"{{ x }", "{{ in line 1 of the template is never closed"},
      {"{{ '}}' ", "{{ in line 1 of the template is never closed"},
      {"{{ 'x }}", "{{ in line 1 of the template is never closed"},
      {"{% if x", "{% in line 1 of the template is never closed"},
      {"\n\n{# x }}", "{# in line 3 of the template is never closed"},
      {"{%- for m in messages -%}\n{{ m }}", "{% for %} in line 1 of the template is never closed"},
      {"{% raw %} {{ {% if %}", "{% raw %} in line 1 of the template is never closed"},
      {"{% set x %}a", "{% set %} in line 1 of the template is never closed"},
      {"a{% endif %}", "{% endif %} in line 1 of the template closes nothing"},
      {"{% for x in y %}\n{% if x %}\n{% endfor %}{% endif %}",
       "{% endfor %} in line 3 of the template stands where {% if %} of line 2 is to be closed"},
  };
  for (const auto& [source, problem] : cases) EXPECT_EQ(TemplateProblem(source), problem) << source;
}

TEST(TemplateCheckTest, WholeTemplatesPass) {
  for (const char* source :
       {"", "no template", "{", "{{ '{{' }}", "{{ {'a': {'b': 1}} }}", "{% set x = {'a': '%}'} %}",
        "{% set x %}a{% endset %}", "{#- {{ {% -#}", "{% raw %}{{ {% if %}{%- endraw -%}",
        "{%- if a -%}{% elif b %}{% else %}{%+ endif %}", "{{ 'it\\'s }}' }}", "}} %} #}",
        "{% macro m(x) %}{% call m(1) %}{% endcall %}{% endmacro %}", "{% break %}{% endunknown %}",
        "{% for x in y if x %}{% continue %}{% endfor %}"}) {
    EXPECT_EQ(TemplateProblem(source), "") << source;
  }
}

TEST(TemplateCheckTest, ATemplateIsCheckedInLinearTime) {
  for (const char* piece :
       {"{", "{%", "{{", "{%if%}", "{%raw%}{%", "{{'", "{#", "{% endraw", "}}"}) {
    std::string source = piece;
    while (source.size() < 4'000'000) source += source;
    (void)TemplateProblem(source);
    (void)TemplateProblem("{% raw %}" + source);
    (void)TemplateProblem("{{ " + source);
  }
}

TEST(TemplateCheckTest, AJobWithAnUnclosedTemplateIsRefused) {
  const Resolution r =
      ResolveText(Minimal("[data]\nchat_template = \"{% for m in messages %}{{ m.content }}\"\n"));
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].key, "data.chat_template");
  EXPECT_EQ(r.problems[0].line, 7);
}

}  // namespace
}  // namespace sft::spec
