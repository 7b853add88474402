document.querySelectorAll("table").forEach(sortable);
