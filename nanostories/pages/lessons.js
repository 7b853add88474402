"use strict";
function connectLessons() {}
