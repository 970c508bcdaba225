// Loaded before everything else: what goes wrong in the page is written to its root element, where tests look.
window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message || "a resource could not be loaded";
});
window.addEventListener("securitypolicyviolation", (event) => {
  document.documentElement.dataset.error = "refused by the content security policy: " + event.violatedDirective;
});
